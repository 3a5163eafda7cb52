#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# progress.sh [--all] WHAT COMMAND…: run COMMAND, which may be silent for minutes or print a line for each of hundreds of steps, and print a line at
# least every ten seconds: the time, how many lines COMMAND printed, and the last one. If it fails, all that it printed is printed, too; with
# --all it always is, as it comes.
set -uo pipefail
all=
if [ "$1" = --all ]; then
	all=1
	shift
fi
what=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "  $what"
"$@" 2>&1 </dev/null | {
	count=0 last='' part='' shown=0
	while true; do
		IFS= read -r -t 1 line
		status=$?
		part+=$line
		if [ $status = 0 ]; then
			printf '%s\n' "$part" >>"$log"
			[ -z "$all" ] || { printf '%s\n' "$part" && shown=$SECONDS; }
			last=${part##*$'\r'} part='' count=$((count + 1))
		elif [ $status -le 128 ]; then
			printf '%s' "$part" >>"$log"
			break
		fi
		if ((SECONDS - shown >= 5)); then
			shown=$SECONDS
			printf '  %5d s  %.100s\n' "$SECONDS" "${last:+$count: $last}"
		fi
	done
}
status=${PIPESTATUS[0]}
[ "$status" = 0 ] || [ -n "$all" ] || cat "$log" >&2
exit "$status"
