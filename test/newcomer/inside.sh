#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# inside.sh TAG: what newcomer.sh runs as the first process of a throw-away system: make it what a user finds, and have typed.sh type as
# that user. The last line is "N passed, N failed".
set -uo pipefail
cgroup=newcomer-$1

cp -r /test/apt/apt.conf.d /etc/apt/
cp -r /test/ssl/certs /etc/ssl/
cp /test/resolv.conf /test/hosts /etc/
install -m 755 /test/systemctl /usr/local/bin/systemctl
# The simulated driver is where a driver would be, once it is built.
install -d -m 1777 /card
echo /home/newcomer/gpuslice/bin/fakecuda >/etc/ld.so.conf.d/driver.conf
useradd --create-home --shell /bin/bash --groups sudo,docker newcomer
chmod 755 /home/newcomer
chown -R newcomer: /test/gpuslice.git
{
	echo 'newcomer ALL=(ALL) NOPASSWD: ALL'
	echo 'Defaults env_keep += "GOPROXY GOSUMDB FAKECUDA_STATE DEBIAN_FRONTEND"'
} >/etc/sudoers.d/newcomer

# What the machine has before: Docker, with an image.
mkdir -p /etc/docker /var/lib/docker
mount -t tmpfs none /var/lib/docker # overlay does not stack on what this root is
cat >/etc/docker/daemon.json <<JSON
{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "cgroup-parent": "/$cgroup", "exec-opts": ["native.cgroupdriver=cgroupfs"]}
JSON
setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
for ((i = 0; i < 600; i++)); do
	! docker version >/dev/null 2>&1 || break
	sleep 0.1
done
if ! tar -C / -c bin lib lib64 sbin usr/bin usr/lib/x86_64-linux-gnu usr/lib64 etc/passwd 2>/dev/null | docker import - pytorch/pytorch >/dev/null; then
	tail -n 20 /var/log/dockerd.log
	echo "0 passed, 1 failed"
	exit 1
fi
mapfile -t go </test/go
runuser -u newcomer -- env HOME=/home/newcomer USER=newcomer LOGNAME=newcomer GOPROXY="${go[0]}" GOSUMDB="${go[1]}" FAKECUDA_STATE=/card/state \
	PATH=/usr/local/bin:/usr/bin:/bin bash /test/typed.sh
