#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# test.sh [GO TEST FLAG…]: the Kubernetes driver's own tests, with a kubelet and an API server of their making, and a real gpusliced on
# simulated cards. Without module downloads they take seconds. `make test-kubernetes` runs a cluster.
set -euo pipefail
cd "$(dirname "$0")"
go=${GO:-$(../test/go.sh)}
export CGO_ENABLED=0 GOFLAGS="-trimpath ${GOFLAGS:-}" # as make builds the driver: what both need of Kubernetes' packages is compiled once
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd .. && "$go" build -buildvcs=false -o "$dir/report" ./test/report)
"$go" test -tags grpcnotrace -json -count=1 -buildvcs=false ./... "$@" 2>&1 | "$dir/report"
