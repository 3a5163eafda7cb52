#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The two units under a systemd of their own, in namespaces on a Debian that is thrown away: what the units forbid, a container, a session, a lease, a
# restart, and the modes of all that is made, against docs/evidence/modes.md. The driver is the simulated one.
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/debian.sh
base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/units/bookworm-2
[ "$EUID" = 0 ] || {
	echo "units: root is needed, for namespaces and cgroups" >&2
	exit 1
}
test/deps.sh --need units debootstrap
work=$(mktemp -d /tmp/gpuslice-units.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
debian_made "$base" bookworm systemd,procps,runc

make --no-print-directory -s install DESTDIR="$work/test/tree" >/dev/null
cp -r bin/fakecuda bin/demo/cuda_hog test/units/inside.sh test/units/look.sh docs/evidence/modes.md "$work/test/"
name=gpuslice-units-$$
timeout -s KILL 300 unshare --mount --pid --fork --kill-child bash -euc 'debian_enter "$@"' debian "$base" "$work" "$name" </dev/null >"$work/log" 2>&1 ||
	true # a power-off ends it by a signal
find /sys/fs/cgroup/{,unified/}"$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
cat "$work/test/said" || { cat "$work/log" && echo "0 passed, 1 failed, 0 skipped" && exit 1; }
grep -q '^[1-9][0-9]* passed, 0 failed, 0 skipped$' "$work/test/said"
