# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Functions of .ci/run and .ci/nightly. A lane is a row of steps in the background; its pid is in lanes.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# Build and tests compile with the same flags, and so once. The linters run vet.
export CI=true GOFLAGS="-trimpath -vet=off" CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"
exec </dev/null
if [ "$EUID" != 0 ]; then
	echo "ci: not root: the tests make containers, namespaces and cgroups (run it by sudo)" >&2
	exit 1
fi

dir=$(mktemp -d) || exit
lanes=()
trap 'kill ${lanes[@]+"${lanes[@]}"} 2>/dev/null; rm -rf "$dir"' EXIT
touch "$dir/results"

# step NAME SECONDS COMMAND…: run a command, print its output when it has ended, and note the result. The limit ends a hang. A command that
# does not end with "N passed, N failed, N skipped" counts as one test.
step() {
	local name=$1 limit=$2 begin=$SECONDS status=0 line p f s result=ok
	shift 2
	echo "=== $name begins: $*"
	timeout --kill-after=30 "$limit" "$@" >"$dir/$name" 2>&1 || status=$?
	line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$dir/$name" | tail -1) ||
		line="$((status == 0)) passed, $((status != 0)) failed, 0 skipped"
	read -r p _ f _ s _ <<<"$line"
	[ "$status" = 0 ] || [ "$f" != 0 ] || f=1 # it ended before it could count
	[ "$f" = 0 ] || result=FAILED
	{
		flock 9
		echo "=== $name:"
		cat "$dir/$name"
		echo "=== $name: $result after $((SECONDS - begin)) s (exit status $status)"
		echo "$p $f $s $((SECONDS - begin)) $status $name" >>"$dir/results"
	} 9>"$dir/lock"
	[ "$f" = 0 ]
}

# finish: wait for the lanes, print the table of steps, and end with the sum as the last line.
finish() {
	local passed=0 failed=0 skipped=0 p f s seconds status name result
	wait ${lanes[@]+"${lanes[@]}"}
	lanes=()
	echo "=== $((SECONDS / 60)) min $((SECONDS % 60)) s"
	while read -r p f s seconds status name; do
		passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
		[ "$f" = 0 ] && result=ok || result=FAILED
		printf '%5d s  %-6s  %s\n' "$seconds" "$result" "$name"
	done <"$dir/results"
	[ -e /dev/nvidiactl ] || echo "There is no GPU here: everything ran on the simulated driver."
	while read -r p f s seconds status name; do
		[ "$f" != 0 ] || continue
		echo "FAILED: $name (exit status $status)"
		grep -aE '^ *(FAIL|--- FAIL|not ok|[a-z0-9_]+_test\.go:[0-9]+:)|WARNING: ThreadSanitizer|ERROR: AddressSanitizer|runtime error:|FATAL:' \
			"$dir/$name" | head -40 | cut -c1-300
	done <"$dir/results"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
	exit
}
