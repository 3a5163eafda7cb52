#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# cgroup2.sh COMMAND…: run a command where the v2 hierarchy is mounted and no other, as on most hosts of today. It has no controllers where
# the host's v1 hierarchies have taken them; the tests need membership of processes alone.
set -euo pipefail
if [ "${GPUSLICE_CGROUP2:-}" != inside ]; then
	GPUSLICE_CGROUP2=inside exec unshare --mount "$0" "$@"
fi
unset GPUSLICE_CGROUP2
if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then
	umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
[ -e /sys/fs/cgroup/cgroup.procs ] && ! grep -q ' - cgroup ' /proc/self/mountinfo
exec "$@"
