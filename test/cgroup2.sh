#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests that have to do with cgroups, where the v2 hierarchy is mounted and no other, as on most hosts of today. (It has no
# controllers where the host's v1 hierarchies have taken them; that processes belong to it is what counts here.)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != inside ]; then
	exec unshare --mount "$0" inside
fi
if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then
	umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
[ -e /sys/fs/cgroup/cgroup.procs ] && ! grep -q ' - cgroup ' /proc/self/mountinfo
PACKAGES="./enforcer/cgroup ./test/hook ./test/e2e" exec test/run.sh --strict
