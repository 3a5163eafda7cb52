#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [--strict] SUITE…: run the Go tests, then each SUITE (a command of one word), and add up. A suite may
# end with its own line "N passed, N failed, N skipped"; one that does not counts as one.
# --strict: a test that is skipped for want of root or of a package is a failure.
# GO_TEST_FLAGS are handed to `go test`; PACKAGES (./...) are what it tests.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
go=${GO:-$(test/go.sh)}
strict=()
if [ "${1:-}" = --strict ]; then
	strict=(-strict)
	shift
fi

log=$(mktemp) || exit
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# add NAME STATUS: add the counts of the suite in $log.
add() {
	local last
	last=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -1)
	if [ -n "$last" ]; then
		local p f s
		read -r p _ f _ s _ <<<"$last"
		if [ "$2" != 0 ] && [ "$f" = 0 ]; then
			f=1
		fi
		passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	elif [ "$2" = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
	[ "$2" = 0 ] || echo "FAIL $1 (exit status $2)"
}

report=$(mktemp -d)/report || exit
"$go" build -trimpath -buildvcs=false -o "$report" ./test/report || exit 2
# shellcheck disable=SC2086 # flags are words
"$go" test -json -count=1 -timeout 30m -buildvcs=false ${GO_TEST_FLAGS:-} ${PACKAGES:-./...} 2>&1 | "$report" "${strict[@]}" | tee "$log"
status=("${PIPESTATUS[@]}")
add "go test" "$((status[0] | status[1]))"
rm -rf "${report%/*}"

for suite; do
	test/progress.sh --all "== $suite" "$suite" | tee "$log"
	status=("${PIPESTATUS[@]}")
	add "$suite" "${status[0]}"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
