#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [-only NAMES] [FLAG…]: a container, a user with a limit, one without, and a user namespace do all the harm that they can for
# GPUSLICE_HOSTILE (1m), beside a well-behaved container and an operator; a client of leases does so for a quarter of that beside another
# one. Prints their actions, and measures the effect on the others. Runs in a mount namespace of its own, so no mount remains.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-$(test/go.sh)}
if [ "$EUID" != 0 ]; then
	echo "hostile: it makes containers, cgroups and users: run this as root" >&2
	exit 1
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" test -tags hostile -c -o "$dir/hostile" ./test/hostile
status=0
(cd test/hostile && unshare --mount --propagation private "$dir/hostile" -test.v -test.timeout 0 -duration "${GPUSLICE_HOSTILE:-1m}" "$@") || status=$?
echo "$((status == 0)) passed, $((status != 0)) failed, 0 skipped"
exit "$status"
