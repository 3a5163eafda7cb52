#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [SECONDS]: run the interceptor, built with sanitizers, in programs with races: with ThreadSanitizer, and with the address and
# undefined behaviour sanitizers together. Programs with a duration run for SECONDS (8).
#
# Address randomization is off if the kernel allows: with 32 random bits a mapping sometimes lies in the sanitizers' shadow memory, and the
# program fails at its start.
#
# The functions that replace dlsym are not instrumented: the sanitizers' runtimes call dlsym before they are ready.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-8}
passed=0 failed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fixed=()
! setarch -R true 2>/dev/null || fixed=(setarch -R)

warnings=(-Wall -Wextra -Werror)
early=(interceptor/route.c interceptor/loader.c interceptor/elf_symbol.c interceptor/route.S interceptor/entry.S interceptor/gate.S)
late=()
for file in interceptor/*.c; do
	[[ " ${early[*]} " == *" $file "* ]] || late+=("$file")
done

# library KIND FLAG…: build $dir/KIND/libgpuslice.so, beside the CLI that preloads it.
library() {
	local kind=$1 file objects=()
	shift
	mkdir -p "$dir/$kind"
	cp bin/gpuslice "$dir/$kind/" || return
	for file in "${late[@]}"; do
		objects+=("$dir/$kind/$(basename "$file").o")
		cc -std=c11 -D_GNU_SOURCE -O1 -g -fPIC -fvisibility=hidden "${warnings[@]}" "$@" -c -o "${objects[-1]}" "$file" || return
	done
	for file in "${early[@]}"; do
		objects+=("$dir/$kind/$(basename "$file").o")
		cc -std=c11 -O1 -g -fPIC -fvisibility=hidden -D_GNU_SOURCE "${warnings[@]}" -c -o "${objects[-1]}" "$file" || return
	done
	cc "$@" -shared -Wl,-soname,libgpuslice.so -Wl,-Bsymbolic -o "$dir/$kind/libgpuslice.so" "${objects[@]}"
}

# try KIND QUOTA PROGRAM ARG…: compile the program with the flags of its kind and run it in a slice.
try() {
	local kind=$1 quota=$2 program=$3 begin=$SECONDS sources last
	shift 3
	sources=(test/interceptor/programs/"$program"*.c)
	[ "$program" != storm ] || sources+=(interceptor/ledger.c)
	if cc -std=gnu11 -O1 -g "${warnings[@]}" "${flags[@]}" -Iinterceptor -o "$dir/$kind/$program" "${sources[@]}" \
		bin/fakecuda/libcuda.so.1 -ldl -lpthread >"$dir/log" 2>&1 &&
		LD_LIBRARY_PATH=$PWD/bin/fakecuda FAKECUDA_STATE=$dir/state FAKECUDA_DEVICES=2 FAKECUDA_CONTEXT=${context:-8M} \
			"${fixed[@]}" "$dir/$kind/gpuslice" run --embedded --quiet --vram "$quota" -- "$dir/$kind/$program" "$@" >"$dir/log" 2>&1 &&
		! grep -qE 'WARNING: ThreadSanitizer|ERROR: AddressSanitizer|runtime error:' "$dir/log"; then
		echo "ok   $kind: $program $* ($((SECONDS - begin)) s)"
		passed=$((passed + 1))
	else
		last=$(tail -n 3 "$dir/log" | paste -sd'|' | cut -c1-250)
		echo "FAIL $kind: $program $*: $last"
		head -c 20000 "$dir/log"
		failed=$((failed + 1))
	fi
	rm -f "$dir"/state*
}

built() {
	echo "FAIL $1: the interceptor does not compile"
	cat "$dir/log"
	failed=$((failed + 1))
}

export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
# -Wno-tsan: it does not understand fences. The ledger has them for other processes; threads share only data behind locks.
flags=(-fsanitize=thread -Wno-tsan)
if library thread "${flags[@]}" -include test/sanitizers/tsan_atomic128.h >"$dir/log" 2>&1; then
	try thread 2G threads 16 4000
	try thread 1536M race "$seconds" 8 4 $((1536 << 20))
	try thread 4G storm "$seconds" 8 2
	for row in kept own orphan; do
		try thread 4G rows share-$row within
	done
else
	built thread
fi

# verify_asan_link_order=0: the interceptor is preloaded, and so comes before the runtime.
export ASAN_OPTIONS="detect_leaks=0 verify_asan_link_order=0" UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"
flags=("-fsanitize=address,undefined" -fno-sanitize-recover=all)
if library address "${flags[@]}" >"$dir/log" 2>&1; then
	try address 2G threads 16 4000
	try address 1536M race "$seconds" 8 4 $((1536 << 20))
	try address 4G storm "$seconds" 8 2
	context=64M try address 4G accounting
	context=64M try address 2G fork
	context=64M try address 4G devices
	for row in kept own orphan; do
		context=64M try address 4G rows share-$row within
	done
else
	built address
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
