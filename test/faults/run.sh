#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [-seed N] [-only FAULT] [FLAG…]: run the fault suite, in a mount namespace of its own, so that nothing that it
# mounts can stay, and where cgroups of version 2 are mounted alone, as on most hosts: the driver enforces there only. It
# begins new rounds for GPUSLICE_FAULTS (5m). Their seeds count up from a random one, or with GPUSLICE_FAULTS_SEED=commit from one
# that is the commit's: its first 8 digits. With TABLE=docs/evidence/faults.md the table of results is written there.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = inside ]; then
	shift
	if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then
		umount -R /sys/fs/cgroup
		mount -t cgroup2 none /sys/fs/cgroup
	fi
	cd test/faults
	exec "$@"
fi
go=${GO:-$(test/go.sh)}
if [ "$EUID" != 0 ]; then
	echo "faults: it makes containers, cgroups and mounts: run this as root" >&2
	exit 1
fi
first=0 # a random one
case ${GPUSLICE_FAULTS_SEED:-} in
"") ;;
commit)
	if commit=$(git rev-parse --verify --quiet HEAD 2>/dev/null); then
		first=$((16#${commit:0:8}))
	else
		echo "faults: there is no commit to take the first seed from (git says none here): it is a random one"
	fi
	;;
*)
	echo "faults: GPUSLICE_FAULTS_SEED=$GPUSLICE_FAULTS_SEED cannot be used: \"commit\" is accepted, and nothing for a random first seed" >&2
	exit 2
	;;
esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$go" test -tags faults -c -o "$dir/faults" ./test/faults
unshare --mount --propagation private test/faults/run.sh inside "$dir/faults" -test.timeout 0 -duration "${GPUSLICE_FAULTS:-5m}" -first "$first" \
	${TABLE:+-table "$PWD/$TABLE"} "$@" &
suite=$!
# The suite cleans up, and then reports that it failed.
trap 'kill "$suite" 2>/dev/null' INT TERM
status=0
wait "$suite" || status=$?
while kill -0 "$suite" 2>/dev/null; do # a signal has ended the wait
	wait "$suite" || status=$?
done
echo "$((status == 0)) passed, $((status != 0)) failed, 0 skipped"
exit "$status"
