#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh: hold the simulated driver to expected/simulated.txt, line by line, on a machine of its own;
# and hold expected/simulated.txt to expected/h100.txt, which a card printed: every line in which they
# differ is named in expected/differences.md, and every name there is of such a line.
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

if [ "${1:-}" = --record ]; then
	cp "$dir/seen" "$expected/simulated.txt"
	exit
fi

failed=0
diff -u "$expected/simulated.txt" "$dir/seen" || failed=1

# "program/key<tab>value"; a key that comes again gets a number.
keyed() {
	awk '/^#/ { next }
	     /^\[.*\]$/ { program = substr($0, 2, length($0) - 2); next }
	     {
		at = index($0, ":")
		key = program "/" substr($0, 1, at - 1)
		if (++seen[key] > 1)
			key = key "#" seen[key]
		print key "\t" substr($0, at + 1)
	     }' "$1"
}

declare -A card simulated named
keyed "$expected/h100.txt" >"$dir/card"
keyed "$expected/simulated.txt" >"$dir/simulated"
while IFS=$'\t' read -r key value; do card[$key]=${value# }; done <"$dir/card"
while IFS=$'\t' read -r key value; do simulated[$key]=${value# }; done <"$dir/simulated"
# In differences.md a line "* `pattern`, `pattern`: why" names lines by shell patterns.
# shellcheck disable=SC2016 # the backquotes are text
sed -n '/^\* `/s/`: .*/`/p' "$expected/differences.md" | grep -o '`[^`]*`' | tr -d '`' >"$dir/patterns"
mapfile -t patterns <"$dir/patterns"

printf '%s\n' "${!card[@]}" "${!simulated[@]}" | LC_ALL=C sort -u >"$dir/keys"
wrong=0 left=0
while read -r key; do
	[ "${card[$key]-missing}" != "${simulated[$key]-missing}" ] || continue
	if [ "${card[$key]-}" = "$unmeasured" ]; then
		left=$((left + 1))
		continue
	fi
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
			"$key" "${card[$key]-(no such line)}" "${simulated[$key]-(no such line)}"
		wrong=1
	fi
done <"$dir/keys"
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
