#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# inside.sh NAME: the first process of a Debian. It prepares the host and becomes systemd, which runs look.sh, in cgroups called NAME.
set -euo pipefail
tar -C /test/tree -c . | tar -C / -x --keep-directory-symlink
cp /test/fakecuda/lib*.so.1 /usr/lib/
cp /test/cuda_hog /usr/bin/
cp /test/cuda_hog /usr/bin/work_hog # by a name of its own
groupadd --system gpuslice
useradd -m alice
cat >>/etc/gpuslice/config.toml <<'CONFIG'

[[sessions.limits]]
user = "alice"
max_vram = "8G"
max_sessions = 4
CONFIG
cat >/etc/systemd/system/look.service <<'UNIT'
[Unit]
After=multi-user.target

[Service]
Type=oneshot
Environment=FAKECUDA_STATE=/dev/shm/units
StandardOutput=file:/test/said
StandardError=inherit
ExecStart=/bin/bash /test/look.sh
ExecStopPost=/bin/systemctl --force poweroff
UNIT
for unit in gpusliced gpuslice-leased; do
	mkdir "/etc/systemd/system/$unit.service.d"
	printf '[Service]\nEnvironment=FAKECUDA_STATE=/dev/shm/units\n' >"/etc/systemd/system/$unit.service.d/simulated.conf"
done
mkdir -p /etc/systemd/system/default.target.wants
ln -s ../look.service /etc/systemd/system/default.target.wants/look.service

# Its cgroups of version 2 are the root ones in its namespace. Systemd gets no other cgroups, devices or settings of the host.
root=/sys/fs/cgroup
[ -e "$root/cgroup.procs" ] || root+=/unified
mkdir "$root/$1"
echo $$ >"$root/$1/cgroup.procs"
# shellcheck disable=SC2016 # for the shell there
exec unshare --cgroup --mount bash -euc '
	umount -l /sys
	mount -t sysfs -o ro none /sys
	mount -t cgroup2 none /sys/fs/cgroup
	mount -t tmpfs -o mode=755 none /dev
	for node in null:3 zero:5 full:7 random:8 urandom:9; do
		mknod -m 666 "/dev/${node%:*}" c 1 "${node#*:}"
	done
	ln -s /proc/self/fd /dev/fd
	mkdir /dev/shm
	mount -t tmpfs none /dev/shm
	mount --bind /proc/sys /proc/sys
	mount -o remount,bind,ro /proc/sys
	exec env container=gpuslice /lib/systemd/systemd --system --log-target=null --show-status=no'
