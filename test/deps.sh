#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Install what build, test and demo need (with --ci: what .ci/run needs, too) on Debian or
# Ubuntu, and say so. What is there is left alone: a machine with Docker's own packages has a runc that the
# distribution's would push out.
set -euo pipefail
cd "$(dirname "$0")/.."

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
	"busybox busybox-static"
	"spin spin"
	"curl curl"
	"unzip unzip"
	"/etc/ssl/certs/ca-certificates.crt ca-certificates"
)
if [ "${1:-}" = --ci ]; then
	needs+=(
		"clang-format clang-format"
		"clang-tidy clang-tidy"
		"shellcheck shellcheck"
		"systemd-analyze systemd"
		"qemu-aarch64-static qemu-user-static"
		"aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu"
		"/usr/aarch64-linux-gnu/include/stdio.h libc6-dev-arm64-cross"
	)
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

# runc, crun and the like are in directories that are not in everyone's PATH.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
missing=()
for need in "${needs[@]}"; do
	read -r what package <<<"$need"
	case $what in
	/*) [ -e "$what" ] || missing+=("$package") ;;
	*) command -v "$what" >/dev/null || missing+=("$package") ;;
	esac
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

# Go: Debian 12's is older than 1.21, which is the first that fetches the version go.mod asks for.
if [ ! -x "$(test/go.sh)" ]; then
	release=1.26.8
	case $(uname -m) in
	x86_64) arch=amd64 sum=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
	aarch64) arch=arm64 sum=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
	*)
		echo "deps: gpuslice runs on x86-64 and aarch64, this is $(uname -m)" >&2
		exit 1
		;;
	esac
	name=golang.org/toolchain@v0.0.1-go$release.linux-$arch
	echo "deps: fetching Go $release from the Go module proxy into .cache/go"
	mkdir -p .cache
	rm -rf .cache/go .cache/go.zip .cache/golang.org
	curl -fsSL -o .cache/go.zip "https://proxy.golang.org/golang.org/toolchain/@v/${name#*@}.zip"
	echo "$sum  .cache/go.zip" | sha256sum -c --quiet
	unzip -q .cache/go.zip -d .cache
	mv ".cache/$name" .cache/go
	# Module archives carry no permissions.
	chmod -R u+w .cache/go
	find .cache/go/bin .cache/go/pkg/tool -type f -exec chmod +x {} +
	rm -rf .cache/go.zip .cache/golang.org
fi
echo "deps: all there"
