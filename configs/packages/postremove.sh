# shellcheck shell=sh disable=SC2154 # common.sh and build.sh set them
# SPDX-License-Identifier: Apache-2.0
#
# dpkg: remove, purge, upgrade and others. rpm: how many of the package are left.
case ${1:-} in
remove)
	! systemd_runs || systemctl daemon-reload || true
	exit 0
	;;
purge | 0) ;;
*) exit 0 ;;
esac

! systemd_runs || systemctl daemon-reload || true
gpuslice_prune "$libdir" >&2
rmdir "$libdir" 2>/dev/null || true
# The kernel unmounts what is mounted on a removed file: running containers would lose their quota.
if alive; then
	say "/run/gpuslice stays until the next boot: slices in it are in use"
else
	rm -rf /run/gpuslice
fi
rm -rf /var/lib/gpuslice
if [ "$1" = purge ]; then
	rm -rf /etc/gpuslice /var/log/gpuslice
	rm -f /etc/systemd/system/*.wants/"$unit" /etc/systemd/system/*.wants/"$leases"
	! getent group gpuslice >/dev/null || groupdel gpuslice || true
else
	rmdir /etc/gpuslice 2>/dev/null || true
fi
exit 0
