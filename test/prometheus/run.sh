#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [GO TEST FLAG…]: the alert rules and the dashboard of configs/, with a real Prometheus that looks at a private
# enforcer on the simulated driver. About a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-$(test/go.sh)}
test/deps.sh --need test-metrics prometheus
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" build -o "$dir/report" ./test/report
"$go" test -tags prometheus -json -count=1 -timeout 10m ./test/prometheus "$@" | "$dir/report" -strict
