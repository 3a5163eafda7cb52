# shellcheck shell=sh disable=SC2154 # common.sh and build.sh set them
# SPDX-License-Identifier: Apache-2.0
#
# dpkg: remove, upgrade and others. rpm: how many of the package will be left.
case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac

# Containers would be left without a runtime: nobody could end them by their engine.
if ! /usr/bin/gpuslice in-use ${GPUSLICE_FORCE:+--force}; then
	say "GPUSLICE_FORCE=1 in the environment removes the package all the same"
	exit 1
fi
# An engine that names a runtime that is gone could start nothing with it.
/usr/bin/gpuslice uninstall all >/dev/null || say "look at the engines' configurations yourself: is gpuslice still named there?"

if has_systemctl && systemd_runs; then
	systemctl stop "$leases" "$unit" || true
fi
/usr/bin/gpuslice in-use --daemon ${GPUSLICE_FORCE:+--force} || exit 1
# Brokers outlive the service, and nobody could end them any more.
for kill in /sys/fs/cgroup/gpuslice-leases/cgroup.kill /sys/fs/cgroup/unified/gpuslice-leases/cgroup.kill; do
	[ ! -e "$kill" ] || echo 1 >"$kill" || true
done
# dpkg's "remove" may be taken back, by an installation that finds the unit enabled; "purge" disables it.
if has_systemctl && [ "$1" = 0 ]; then
	systemctl disable "$leases" "$unit" >/dev/null 2>&1 || true
fi
if alive; then
	say "slices are in use: their running processes keep the quota, and new ones get no GPU memory"
fi
gpuslice_remove "$libdir" >&2
exit 0
