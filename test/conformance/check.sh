#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh: compare what the conformance programs print on the simulated driver, on a machine of its own, with
# expected/h100.txt, which a card printed. expected/simulated.txt has the lines in which they differ, each of which
# expected/differences.md must name; a name there without such a line fails.
#
# check.sh --record               writes simulated.txt anew; look at its diff before you commit it.
# check.sh --record-card FILE ID  makes h100.txt from FILE, run.sh's output on a card; ID names the
#                                 card and its driver.
set -euo pipefail
shopt -s extglob
cd "$(dirname "$0")/../.."
expected=test/conformance/expected
unmeasured='(not measured)'

if [ "${1:-}" = --record-card ]; then
	{
		echo "# $3"
		cat "$2"
	} >"$expected/h100.txt"
	exit
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for variable in $(compgen -e FAKECUDA_ || true) CUDA_VISIBLE_DEVICES LD_PRELOAD; do
	unset "$variable"
done
FAKECUDA_STATE=$dir/state LD_LIBRARY_PATH=bin/fakecuda \
	test/conformance/run.sh bin/conformance >"$dir/seen"

awk -f test/conformance/keyed.awk /dev/null "$dir/seen" >"$dir/keyed"
awk -f test/conformance/keyed.awk /dev/null "$expected/h100.txt" >"$dir/card"

if [ "${1:-}" = --record ]; then
	grep -vxFf "$dir/card" "$dir/keyed" >"$expected/simulated.txt" || true
	exit
fi

failed=0
awk -f test/conformance/keyed.awk "$expected/simulated.txt" "$expected/h100.txt" | diff -u - "$dir/keyed" || failed=1

declare -A named
# In differences.md a line "* `pattern`, `pattern`: why" names lines by shell patterns.
# shellcheck disable=SC2016 # the backquotes are text
sed -n '/^\* `/s/`: .*/`/p' "$expected/differences.md" | grep -o '`[^`]*`' | tr -d '`' >"$dir/patterns"
mapfile -t patterns <"$dir/patterns"

left=$(grep -cF ": $unmeasured" "$dir/card") || true
wrong=0
while read -r line; do
	key=${line%%: *}
	! grep -qxF -e "$line" -e "$key: $unmeasured" "$dir/card" || continue
	found=
	for pattern in "${patterns[@]}"; do
		# shellcheck disable=SC2053 # it is a pattern
		if [[ $key == $pattern ]]; then
			found=yes
			named[$pattern]=yes
		fi
	done
	if [ -z "$found" ]; then
		printf '%s differs and is not named in differences.md:\n\tcard:      %s\n\tsimulated: %s\n' \
			"$key" "$(grep -F -- "$key: " "$dir/card" || true)" "$line"
		wrong=1
	fi
done <"$expected/simulated.txt"
for pattern in "${patterns[@]}"; do
	if [ -z "${named[$pattern]-}" ]; then
		echo "differences.md names $pattern, but no such line differs"
		wrong=1
	fi
done
if [ "$left" -gt 0 ]; then
	echo "$left lines of h100.txt are not measured yet"
fi

failed=$((failed + wrong))
echo "$((2 - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
