#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [TIME]: run each fuzz target of the tree for TIME (10s).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
go=${GO:-$(test/go.sh)}
passed=0 failed=0
while IFS=: read -r file target; do
	echo "$file: $target"
	if "$go" test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "./${file%/*}"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' /dev/null | sed 's/func //')
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
