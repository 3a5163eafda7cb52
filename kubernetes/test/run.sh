#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [GO TEST FLAG…]: build a Kubernetes cluster's programs, unless they are there, and try the driver in one.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(../test/go.sh)}
../test/deps.sh --need test-kubernetes debootstrap pkg-config xz busybox ip /usr/include/seccomp.h
../test/engines/build.sh kubernetes containerd-2 runc-1.4 crio podman images helm
export CGO_ENABLED=0 GOFLAGS="-trimpath ${GOFLAGS:-}" # as make builds the driver: what both need of Kubernetes' packages is compiled once
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd .. && "$go" build -buildvcs=false -o "$dir/report" ./test/report)
"$go" test -tags cluster,grpcnotrace -json -count=1 -p 1 -timeout 20m -buildvcs=false ./test/... "$@" | "$dir/report" -strict
