#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [-seed N] [-only FAULT] [FLAG…]: run the fault suite, in a mount namespace of its own, so that nothing that it
# mounts can stay. It begins new rounds for GPUSLICE_FAULTS (5m). With TABLE=docs/reliability.md the table of results is
# written there.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-$(test/go.sh)}
if [ "$(id -u)" != 0 ]; then
	echo "faults: it makes containers, cgroups and mounts: run this as root" >&2
	exit 1
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" test -tags faults -c -o "$dir/faults" ./test/faults
status=0
(cd test/faults && unshare --mount --propagation private "$dir/faults" -test.timeout 0 -duration "${GPUSLICE_FAULTS:-5m}" \
	${TABLE:+-table "$OLDPWD/$TABLE"} "$@") || status=$?
echo "$((status == 0)) passed, $((status != 0)) failed, 0 skipped"
exit "$status"
