#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Run the tests that have a long form (they read GPUSLICE_LONG) in it: races and injected faults.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
mapfile -t packages < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -l GPUSLICE_LONG | xargs -r -n1 dirname | sort -u | sed 's|^|./|')
if [ ${#packages[@]} = 0 ]; then
	echo "no test has a long form"
	exit 1
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$go" build -o "$report" ./test/report
GPUSLICE_LONG=1 "$go" test -json -count=1 -timeout 14m "${packages[@]}" | "$report" -strict
