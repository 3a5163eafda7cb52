# shellcheck shell=sh disable=SC2034 # what it sets is used by the scripts
# SPDX-License-Identifier: Apache-2.0
#
# Shared by a package's scripts: build.sh puts it before each of them, with library.sh.

libdir=/usr/lib/gpuslice
unit=gpusliced.service
leases=gpuslice-leased.service

say() { echo "gpuslice: $*" >&2; }
systemd_runs() { [ -d /run/systemd/system ]; }
has_systemctl() { command -v systemctl >/dev/null 2>&1; }

# alive: a process has a slice's directory mapped or mounted, or that is unknown.
alive() {
	for dir in /run/gpuslice/slices/*/; do
		[ -d "$dir" ] || continue
		dir=${dir%/}
		if ! users=$(gpuslice_users "/slices/${dir##*/}") || [ -n "$users" ]; then
			return 0
		fi
	done
	return 1
}
