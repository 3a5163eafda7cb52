#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [TIME]: run each fuzz target of the tree for TIME (10s).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
go=${GO:-$(test/go.sh)}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0
while IFS=: read -r file target; do
	if "$go" test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "./${file%/*}" >"$log" 2>&1 &&
		tries=$(grep -oE 'execs: [1-9][0-9]*' "$log" | tail -1); then
		echo "ok   ${file%/*} $target ($tries)"
		passed=$((passed + 1))
	else
		echo "FAIL ${file%/*} $target"
		cat "$log"
		failed=$((failed + 1))
	fi
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd enforcer hook shim | sed 's/func //')
if [ $((passed + failed)) = 0 ]; then
	echo "FAIL no fuzz target was found"
	failed=1
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
