# shellcheck shell=sh disable=SC2154 # common.sh and build.sh set them
# SPDX-License-Identifier: Apache-2.0
#
# dpkg: configure, with the last configured version, if any; or abort-… after a failed operation. rpm: the number of installed versions.
case ${1:-} in
configure) [ -n "${2:-}" ] && first=no || first=yes ;;
abort-*) first=no ;;
1) first=yes ;;
*) first=no ;;
esac

if ! getent group gpuslice >/dev/null; then
	groupadd --system gpuslice
fi
# An upgrade removes the package's own file, which running sessions still need.
gpuslice_add "$libdir/packaged/libgpuslice.so" "$libdir" "$gpuslice_version" >/dev/null

if has_systemctl; then
	[ "$first" = no ] || systemctl enable "$unit" >/dev/null 2>&1 || say "systemctl could not enable $unit"
	if systemd_runs; then
		systemctl daemon-reload || true
		# Respects an operator's "disable". Slices keep running during the restart, and the daemon finds them again.
		if systemctl is-enabled --quiet "$unit" 2>/dev/null; then
			systemctl restart "$unit" || say "$unit does not start: journalctl -u gpusliced says why"
		else
			systemctl try-restart "$unit" || say "$unit does not start: journalctl -u gpusliced says why"
		fi
		systemctl try-restart "$leases" || say "$leases does not start: journalctl -u gpuslice-leased says why"
	fi
fi
[ "$first" = no ] || say "gpuslice doctor says whether this host is ready; gpuslice install tells an engine of the runtime"
exit 0
