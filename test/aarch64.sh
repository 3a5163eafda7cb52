#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The C code on aarch64: compile it for there, look at the library, and run it under qemu-user, in a slice of this
# machine's own enforcer. (The ledger's race under qemu is a test of test/ledger.)
set -euo pipefail
cd "$(dirname "$0")/.."
cc=aarch64-linux-gnu-gcc
qemu="qemu-aarch64-static"
for tool in $cc $qemu; do
	command -v "$tool" >/dev/null || {
		echo "aarch64: no $tool: test/deps.sh --ci" >&2
		exit 1
	}
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
passed=0 failed=0
check() { # NAME COMMAND…
	local name=$1
	shift
	if "$@" >"$dir/said" 2>&1; then
		echo "ok   $name"
		passed=$((passed + 1))
	else
		echo "FAIL $name"
		cat "$dir/said"
		failed=$((failed + 1))
	fi
}

# Both libraries, by the Makefile's own rules, in directories of their own.
make --no-print-directory CC=$cc FAKECUDA_BIN="$dir/fakecuda" FAKECUDA_OBJ="$dir/obj" INTERCEPTOR="$dir/libgpuslice.so" \
	"$dir/libgpuslice.so" "$dir/fakecuda/libcuda.so.1" "$dir/fakecuda/libnvidia-ml.so.1"
check "symbols" test/check-symbols.sh "$dir/libgpuslice.so" interceptor/exports.txt

program() {
	$cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -Iinterceptor -o "$dir/$1" "test/interceptor/programs/$1.c" \
		"$dir/fakecuda/libcuda.so.1" -ldl -lpthread
}
# in_slice VRAM PROGRAM ARGUMENT…: the enforcer and its driver are this machine's, the program's are not.
in_slice() {
	local vram=$1 name=$2
	shift 2
	LD_LIBRARY_PATH=$PWD/bin/fakecuda timeout 120 bin/gpuslice run --embedded --quiet --vram "$vram" -- \
		env -u LD_PRELOAD $qemu -E LD_LIBRARY_PATH="$dir/fakecuda" -E LD_PRELOAD="$dir/libgpuslice.so" "$dir/$name" "$@"
}
fresh() {
	rm -f "$dir/card"
	export FAKECUDA_STATE=$dir/card
}
export FAKECUDA_CONTEXT=64M
# Those that do not start themselves anew: qemu-user does not follow an exec.
for run in "routes 4G" "accounting 4G" "threads 2G 4 2000"; do
	read -r name vram arguments <<<"$run"
	program "$name"
	fresh
	# shellcheck disable=SC2086 # words
	check "$name" in_slice "$vram" "$name" $arguments
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
