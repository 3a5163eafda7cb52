#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh [TIME [NAME]]: run each fuzz target of the tree, or those with NAME in their names, for TIME (10s; 10m). Go's targets are in its
# tests; C's are test/fuzz/NAME.c, for libFuzzer, with the address and undefined behaviour sanitizers. Failing inputs are kept where the
# next run, and `go test`, start with them: testdata/fuzz for Go, test/fuzz/corpus for C. The table at the end has each target's time and
# number of tries.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
time=${1:-10s}
name=${2:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
table=()

# Linked with C targets, beside their includes.
declare -A with=([attach]="interceptor/ledger.c interceptor/charge.c"
	[image]="interceptor/image.c"
	[ptx]="test/fakecuda/image.c test/fakecuda/jit.c $(echo test/fakecuda/ptx*.c)")

case $time in
*m) seconds=$((${time%m} * 60)) ;;
*s) seconds=${time%s} ;;
*)
	echo "fuzz: $time is not a time: 10s or 10m" >&2
	exit 2
	;;
esac

# result NAME STATUS TRIES BEGIN: TRIES is the text before the number of tries in the log, which a target that passed has.
result() {
	local tries
	if [ "$2" = 0 ] && tries=$(grep -oE "$3 [1-9][0-9]*" "$dir/log" | tail -1); then
		passed=$((passed + 1))
		tries=${tries##* }
	else
		echo "FAIL $1"
		cat "$dir/log"
		failed=$((failed + 1))
		tries=FAILED
	fi
	table+=("| $1 | $((SECONDS - $4)) s | $tries |")
}

targets=$(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' api cmd daemon enforcer hook hostmem lease shim vmm | sed 's/func //') || {
	echo "fuzz: found no fuzz target of Go" >&2
	exit 1
}
while IFS=: read -r file target; do
	[[ ${file%/*}.$target == *"$name"* ]] || continue
	begin=$SECONDS status=0
	"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./${file%/*}" >"$dir/log" 2>&1 || status=$?
	# Go sometimes reports the end of the time as a failure; a real failure has an input.
	if [ "$status" != 0 ] && grep -q '^    context deadline exceeded$' "$dir/log" && ! grep -q 'Failing input' "$dir/log"; then
		status=0
	fi
	result "${file%/*} $target" "$status" 'execs:' "$begin"
done <<<"$targets"

for file in test/fuzz/*.c; do
	target=${file##*/}
	target=${target%.c}
	[[ $file == *"$name"* ]] || continue
	begin=$SECONDS status=0
	mkdir -p "test/fuzz/corpus/$target" "$dir/$target"
	# shellcheck disable=SC2086 # files are words
	clang -std=gnu11 -g -O1 -Wall -Wextra -Werror -Iinterceptor -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-o "$dir/$target.bin" "$file" ${with[$target]:-} >"$dir/log" 2>&1 &&
		"$dir/$target.bin" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="test/fuzz/corpus/$target/" \
			"$dir/$target" "test/fuzz/corpus/$target" >"$dir/log" 2>&1 || status=$?
	result "$file" "$status" 'number_of_executed_units:' "$begin"
done

if [ $((passed + failed)) = 0 ]; then
	echo "FAIL no fuzz target was found"
	failed=1
fi
printf '| target | ran | tried |\n|---|---|---|\n'
printf '%s\n' "${table[@]}"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
