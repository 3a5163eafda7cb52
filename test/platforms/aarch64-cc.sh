#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A cc that compiles for aarch64, and leaves in the place of a program a script that runs it under qemu-user with the
# libraries in AARCH64: the interceptor and fakecuda/ or fakecuda-11.2/, which also stand in for those in bin/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
arguments=() output='' program=yes previous='' driver=fakecuda
for argument; do
	case $argument in
	-c | -shared | -dumpmachine) program='' ;;
	*/bin/fakecuda*/*)
		driver=${argument##*/bin/}
		driver=${driver%%/*}
		argument=$AARCH64/$driver/${argument##*/}
		;;
	esac
	[ "$previous" != -o ] || output=$argument
	previous=$argument
	arguments+=("$argument")
done
if [ -z "$program" ] || [ -z "$output" ]; then
	exec aarch64-linux-gnu-gcc "${arguments[@]}"
fi
aarch64-linux-gnu-gcc -Wl,--wrap=execl,--defsym=__wrap_execl=execl_anew "$here/anew.c" "${arguments[@]}"
output=$(realpath "$output")
mv "$output" "$output.aarch64"
busybox=$(command -v busybox) || {
	echo "aarch64-cc: busybox is not installed (test/deps.sh --ci)" >&2
	exit 1
}
# The shell is static: LD_PRELOAD names a library of this machine, and then of the other.
cat >"$output" <<END
#!$busybox sh
[ -z "\$LD_PRELOAD" ] || export LD_PRELOAD="$AARCH64/libgpuslice.so"
export LD_LIBRARY_PATH="$AARCH64/$driver:$AARCH64/fakecuda" GPUSLICE_ANEW="$output"
exec qemu-aarch64-static -L /usr/aarch64-linux-gnu "$output.aarch64" "\$@"
END
chmod +x "$output"
