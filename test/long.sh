#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Run the tests with a long form (they read GPUSLICE_LONG) in it: races and injected faults. The ledger's take longest and start first.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
files=$(grep -rl --include='*_test.go' 'Getenv("GPUSLICE_LONG")' api cmd daemon enforcer hook hostmem lease shim test vmm) || {
	echo "long: no test has a long form" >&2
	exit 1
}
directories=$(sed 's|^|./|; s|/[^/]*$||' <<<"$files" | sort -ru)
mapfile -t packages <<<"$directories"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" build -o "$dir/report" ./test/report
GPUSLICE_LONG=1 "$go" test -json -count=1 -timeout 14m "${packages[@]}" | "$dir/report" -strict
