#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# confined.sh UNIT ROOT COMMAND…: runs a command with the confinement of a systemd unit that works without systemd: its mounts, capabilities
# and NoNewPrivileges. Its ReadWritePaths are below ROOT. Its system call filter is not tested here. An unknown line of the unit is an
# error, so every new setting gets tested.
set -euo pipefail
if [ "${GPUSLICE_CONFINED:-}" != inside ]; then
	GPUSLICE_CONFINED=inside exec unshare --mount --uts "$0" "$@"
fi
unset GPUSLICE_CONFINED
unit=$1 root=$2
shift 2

# Paths, and whether the files below them can be written. The longest path applies, since one setting may reopen another's.
declare -A may
open() {
	local path
	for path; do
		may[$path]=${may[$path]:-yes}
	done
}
close() {
	local path
	for path; do
		may[$path]=no
	done
}
hidden=() empty=() privileges=()
settings=$(sed -n '/^\[Service\]/,/^\[Install\]/s/^[A-Za-z]*=/&/p' "$unit")
while IFS='=' read -r key value; do
	case $key=$value in
	ProtectSystem=strict)
		close /
		open /dev /proc /sys /home /root /run/user
		;;
	ProtectHome=read-only) close /home /root /run/user ;;
	PrivateTmp=yes) empty+=(/tmp /var/tmp) ;;
	ProtectKernelTunables=yes)
		close /sys /proc/sys /proc/sysrq-trigger /proc/latency_stats /proc/acpi /proc/timer_stats /proc/fs /proc/irq
		open /sys/fs/cgroup
		;;
	ProtectControlGroups=yes) close /sys/fs/cgroup ;;
	ProtectKernelLogs=yes) hidden+=(/dev/kmsg /proc/kmsg) ;;
	ProtectKernelModules=yes) hidden+=(/lib/modules /usr/lib/modules) ;;
	ReadWritePaths=*)
		for path in $value; do
			open "$root$path"
		done
		;;
	CapabilityBoundingSet=*)
		[ -n "$value" ] || value=CAP_CHOWN # setpriv wants one
		privileges+=("--bounding-set=-all,+${value// /,+}" --inh-caps=-all)
		;;
	NoNewPrivileges=yes) privileges+=(--no-new-privs) ;;
	# The caller checks the system calls.
	SystemCall*=* | Restrict*=yes | RestrictAddressFamilies=* | LockPersonality=yes | MemoryDenyWriteExecute=yes) ;;
	PrivateMounts=yes) ;;   # unshare has made a mount namespace
	ProtectHostname=yes) ;; # a UTS namespace of its own, and a filter
	# Settings that do not confine.
	Type=* | ExecStart=* | Restart*=* | KillMode=* | *Directory=* | *DirectoryMode=* | RuntimeDirectoryPreserve=* | WatchdogSec=* | \
		LimitNOFILE=* | MemoryMax=* | TasksMax=* | OOMScoreAdjust=* | KeyringMode=private) ;;
	*)
		echo "confined: $unit: $key=$value is not known here: say what it does" >&2
		exit 1
		;;
	esac
done <<<"$settings"

# A unified cgroup hierarchy, as test/cgroup2.sh mounts it.
if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then
	umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
for path in "${!may[@]}"; do
	[ ! -e "$path" ] || mountpoint -q "$path" || mount --bind "$path" "$path"
done
mounts=$(findmnt --noheadings --raw --output TARGET)
while read -r mount; do
	mount=$(printf %b "$mount")
	at=$mount
	until [ -n "${may[$at]:-}" ] || [ "$at" = / ]; do
		at=$(dirname "$at")
	done
	[ "${may[$at]:-yes}" = yes ] || mount -o remount,bind,ro "$mount" || ! mountpoint -q "$mount" # it was just unmounted
done <<<"$mounts"
for path in "${hidden[@]}"; do
	if [ -d "$path" ] && [ ! -L "$path" ]; then
		mount -t tmpfs -o ro,mode=0 none "$path"
	elif [ -e "$path" ] && [ ! -L "$path" ]; then
		mount --bind /dev/null "$path"
	fi
done
exec 3<"$root" # it may be in one of these
for path in "${empty[@]}"; do
	mount -t tmpfs -o mode=1777 none "$path"
done
if [ ! -e "$root" ]; then
	mkdir -p "$root"
	mount --no-canonicalize --rbind /proc/self/fd/3 "$root"
fi
exec 3<&-
exec setpriv "${privileges[@]//CAP_/}" "$@"
