#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# compile.sh ARCH NAME…: compile programs and the library for amd64 or arm64, in .cache/packages/ARCH. VERSION and GO are the Makefile's.
set -euo pipefail
cd "$(dirname "$0")/../.."
case $1 in
arm64) cc=aarch64-linux-gnu-gcc ;;
amd64) cc=x86_64-linux-gnu-gcc ;;
*) echo "packages: $1 is not known: amd64 and arm64 are" >&2 && exit 1 ;;
esac
arch=$1 to=.cache/packages/$1
shift
if [ "$*" != gpuslice-dra ] && ! command -v "$cc" >/dev/null; then # which has no C
	echo "packages: there is no $cc, which programs for $arch need: test/deps.sh --ci" >&2
	exit 3
fi
# By the Makefile's own rules; none of the flags of a make that this may be a part of.
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL GOARCH="$arch" CC="$cc" make --no-print-directory BIN="$to" INTERCEPTOR="$to/libgpuslice.so" \
	VERSION="$VERSION" GO="$GO" "${@/#/$to/}"
