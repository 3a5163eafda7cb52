#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [GO TEST FLAG…]: build the engines, unless they are there, and try every case with each. With TABLE=docs/evidence/engines.md
# the table of results is written there. GPUSLICE_CHURN is how many containers an engine has to start and remove at once.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-$(test/go.sh)}
test/deps.sh --need test-engines debootstrap pkg-config xz busybox /usr/include/seccomp.h
test/engines/build.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" build -o "$dir/report" ./test/report
export GPUSLICE_TABLE=$dir/table
status=0
"$go" test -tags engines -json -count=1 -timeout 40m -parallel 4 ./test/engines "$@" ${TABLE:+-args -table "$PWD/$TABLE"} | "$dir/report" -strict >"$dir/said" || status=$?
[ ! -e "$GPUSLICE_TABLE" ] || cat "$GPUSLICE_TABLE"
cat "$dir/said" # last, since its last line is the sum
exit "$status"
