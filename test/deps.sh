#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# deps.sh build|demo|test|--ci: install the packages of `make build`, `make demo`, `make test` or .ci/run on Debian or Ubuntu, and print how much is
# downloaded. Later goals of this list include earlier ones. If a command is installed, its package is not: the distribution's runc conflicts
# with Docker's.
# deps.sh --need FOR WHAT…: install nothing, and fail if a command or file of the list below is missing, with the command that installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
. test/versions

# command (or file), package
needs=(
	"cc gcc"
	"/usr/include/stdio.h libc6-dev"
	"make make"
	"git git"
	"readelf binutils"
	"/etc/ssl/certs/ca-certificates.crt ca-certificates"
)
case ${1:-} in
build | demo | test | --ci | --need) ;;
*)
	echo "usage: deps.sh build|demo|test|--ci, or deps.sh --need FOR WHAT…" >&2
	exit 2
	;;
esac
if [ "$1" != build ]; then
	needs+=("runc runc")
fi
if [[ $1 != build && $1 != demo ]]; then
	needs+=(
		"crun crun"
		"strace strace"
		"python3 python3"
		"openssl openssl"
		"busybox busybox-static"
		"spin spin"
	)
fi
if [ "$1" = --ci ] || [ "$1" = --need ]; then
	needs+=(
		"clang clang"
		# libFuzzer and the sanitizers' runtimes, in the directory of that clang.
		"$(clang -print-resource-dir 2>/dev/null)/lib/linux/libclang_rt.fuzzer-$(uname -m).a libclang-rt-dev"
		"clang-format clang-format"
		"clang-tidy clang-tidy"
		"shellcheck shellcheck"
		"systemd-analyze systemd"
		"qemu-aarch64-static qemu-user-static"
		"aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu"
		"/usr/aarch64-linux-gnu/include/stdio.h libc6-dev-arm64-cross"
		"musl-gcc musl-tools"
		"/usr/include/seccomp.h libseccomp-dev"
		"pkg-config pkg-config"
		"debootstrap debootstrap"
		"xz xz-utils"
		"rpm rpm"
		"dpkg-deb dpkg"
		"mandoc mandoc"
		"hugo hugo"
		"ip iproute2"
		# The client of leases in Python.
		"/usr/lib/python3/dist-packages/grpc python3-grpcio"
		"/usr/lib/python3/dist-packages/google/protobuf python3-protobuf"
		"/usr/lib/python3/dist-packages/numpy python3-numpy"
		# Tools that programs run with.
		"/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2 libjemalloc2"
		"/usr/lib/$(uname -m)-linux-gnu/libtcmalloc_minimal.so.4 libtcmalloc-minimal4"
		"/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketimeMT.so.1 libfaketime"
		"valgrind valgrind"
		"heaptrack heaptrack"
		"zsh zsh"
		"fish fish"
		"prometheus prometheus"
	)
fi

# runc, crun and the like are in directories that are not in everyone's PATH.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
is_here() { # WHAT
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

if [ "$1" = --need ]; then
	for=$2 packages=() missing=()
	shift 2
	for what; do
		is_here "$what" && continue
		missing+=("$what")
		for need in "${needs[@]}"; do
			[ "${need% *}" != "$what" ] || packages+=("${need##* }")
		done
	done
	[ ${#missing[@]} = 0 ] && exit
	echo "$for needs ${missing[*]}, which this machine has not: sudo apt-get install ${packages[*]:-${missing[*]}}" >&2
	exit 1
fi

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		echo "deps: cannot install packages: neither root nor sudo. As root: $*" >&2
		return 1
	fi
}

# Any Go will do: an old one fetches a new one, below.
if [ ! -x "$(test/go.sh)" ]; then
	needs+=("go golang-go")
fi
missing=()
for need in "${needs[@]}"; do
	read -r what package <<<"$need"
	is_here "$what" || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
	if ! command -v apt-get >/dev/null; then
		echo "deps: this machine has no apt-get. Install what provides: ${missing[*]}" >&2
		exit 1
	fi
	# An index that is a little old is better than none: only the installation must succeed.
	as_root test/progress.sh "deps: reading apt's index" apt-get update -q || echo "deps: apt-get update failed; going on with the index that is here" >&2
	bytes=$(apt-get install --print-uris -y -qq --no-install-recommends "${missing[@]}" 2>/dev/null | awk '{ n += $3 } END { print n + 0 }')
	if ! as_root test/progress.sh "deps: installing ${missing[*]}: $((bytes / 1000000)) MB to download" \
		env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; then
		echo "deps: apt-get could not install ${missing[*]}" >&2
		exit 1
	fi
fi

# Go: 1.21 is the first that fetches the version that go.mod asks for by itself, and Debian 12's is older. It can fetch
# the same toolchain as a module, though, from wherever it fetches modules.
if [ ! -x "$(test/go.sh)" ]; then
	release=$(sed -n 's/^toolchain go//p' go.mod)
	case $(uname -m) in
	x86_64) arch=amd64 sum=$go_sum_amd64 ;;
	aarch64) arch=arm64 sum=$go_sum_arm64 ;;
	*)
		echo "deps: gpuslice runs on x86-64 and aarch64, this is $(uname -m)" >&2
		exit 1
		;;
	esac
	rm -rf .cache/go
	mkdir -p .cache
	fetch=$(mktemp -d) # outside of this module, whose go.mod an old Go cannot read
	root=$PWD
	# shellcheck disable=SC2016 # the inner shell expands it
	(cd "$fetch" && env GOPATH="$fetch" GOFLAGS=-modcacherw GONOSUMDB=golang.org/toolchain \
		"$root/test/progress.sh" "deps: fetching Go $release into .cache/go: 70 MB to download" \
		sh -c 'go mod download -json "$1" | tee said' sh "golang.org/toolchain@v0.0.1-go$release.linux-$arch") || {
		echo "deps: Go $release could not be fetched; install Go 1.21 or newer by other means" >&2
		exit 1
	}
	if ! grep -qF "\"Sum\": \"$sum\"" "$fetch/said"; then
		echo "deps: what was fetched as Go $release is not it (its sum is not $sum)" >&2
		exit 1
	fi
	mv "$fetch/pkg/mod/golang.org/toolchain@v0.0.1-go$release.linux-$arch" .cache/go
	# Modules carry no permissions.
	find .cache/go/bin .cache/go/pkg/tool -type f -exec chmod +x {} +
	rm -rf "$fetch"
fi
echo "deps: all there"
