#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Install what build, test and demo need (with --ci: what .ci/run needs, too) on Debian or
# Ubuntu, and say so. What is there is left alone: a machine with Docker's own packages has a runc that the
# distribution's would push out. With --need FOR WHAT…: install nothing, and fail if any of these commands or files is not
# here that are in the list below, with the command that installs them.
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
	"runc runc"
	"crun crun"
	"strace strace"
	"python3 python3"
	"openssl openssl"
	"busybox busybox-static"
	"spin spin"
	"/etc/ssl/certs/ca-certificates.crt ca-certificates"
)
if [ "${1:-}" = --ci ] || [ "${1:-}" = --need ]; then
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

if [ "${1:-}" = --need ]; then
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
	echo "deps: installing ${missing[*]} (a minute or two)"
	# An index that is a little old is better than none: only the installation must succeed.
	as_root apt-get update -qq </dev/null || echo "deps: apt-get update failed; going on with the index that is here" >&2
	log=$(mktemp)
	if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
		cat "$log" >&2
		echo "deps: apt-get could not install ${missing[*]}" >&2
		exit 1
	fi
	rm -f "$log"
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
	echo "deps: fetching Go $release into .cache/go"
	rm -rf .cache/go
	mkdir -p .cache
	fetch=$(mktemp -d) # outside of this module, whose go.mod an old Go cannot read
	said=$(cd "$fetch" && env GOPATH="$fetch" GOFLAGS=-modcacherw GONOSUMDB=golang.org/toolchain \
		go mod download -json "golang.org/toolchain@v0.0.1-go$release.linux-$arch") || {
		echo "deps: Go $release could not be fetched; install Go 1.21 or newer by other means: $said" >&2
		exit 1
	}
	if [[ $said != *"\"Sum\": \"$sum\""* ]]; then
		echo "deps: what was fetched as Go $release is not it (its sum is not $sum)" >&2
		exit 1
	fi
	mv "$fetch/pkg/mod/golang.org/toolchain@v0.0.1-go$release.linux-$arch" .cache/go
	# Modules carry no permissions.
	find .cache/go/bin .cache/go/pkg/tool -type f -exec chmod +x {} +
	rm -rf "$fetch"
fi
echo "deps: all there"
