#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# inside.sh TAG: what newcomer.sh runs as the first process of a throw-away system: make it what a user finds, and have typed.sh type each
# page as that user. The last line is "N passed, N failed"; the one before it, "N skipped in all".
set -uo pipefail
cgroup=newcomer-$1
passed=0 failed=0 skipped=0
finish() {
	echo "$skipped skipped in all"
	echo "$passed passed, $failed failed"
	exit $((failed > 0))
}

cp -r /test/apt/apt.conf.d /etc/apt/
cp -r /test/ssl/certs /etc/ssl/
cp /test/resolv.conf /test/hosts /etc/
install -m 755 /test/systemctl /usr/local/bin/systemctl
echo "$cgroup" >/test/cgroup
# The simulated driver is where a driver would be, once it is built; python asks it for the size of the card.
install -d -m 1777 /card
install -m 666 /dev/null /card/state # of root: in such a directory nobody else may open what a user has made (fs.protected_regular)
echo /home/newcomer/gpuslice/bin/fakecuda >/etc/ld.so.conf.d/driver.conf
printf '#!/bin/sh\nexec /home/newcomer/gpuslice/bin/demo/cuda_hog 0\n' >/usr/local/bin/python
chmod 755 /usr/local/bin/python
useradd --create-home --shell /bin/bash --groups sudo,docker newcomer
useradd alice # of whom the pages speak
chmod 755 /home/newcomer
chown -R newcomer: /test/gpuslice.git
{
	echo 'newcomer ALL=(ALL) NOPASSWD: ALL'
	echo 'Defaults env_keep += "GOPROXY GOSUMDB FAKECUDA_STATE DEBIAN_FRONTEND"'
} >/etc/sudoers.d/newcomer

# The machine of a newcomer has Docker and Podman, with an image. overlay does not stack on the root here.
mkdir -p /etc/docker /var/lib/docker /etc/containers /var/lib/containers
mount -t tmpfs none /var/lib/docker
mount -t tmpfs none /var/lib/containers
cat >/etc/docker/daemon.json <<JSON
{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "cgroup-parent": "/$cgroup/docker", "exec-opts": ["native.cgroupdriver=cgroupfs"]}
JSON
printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >/etc/containers/containers.conf
setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
for ((i = 0; i < 600; i++)); do
	! docker version >/dev/null 2>&1 || break
	sleep 0.1
done
tar -C / -cf /image.tar bin lib lib64 sbin usr/bin usr/lib/x86_64-linux-gnu usr/lib64 usr/lib/cargo etc/passwd 2>/dev/null
if ! docker import /image.tar pytorch/pytorch >/dev/null || ! podman import /image.tar pytorch/pytorch >/dev/null; then
	tail -n 20 /var/log/dockerd.log
	failed=1
	finish
fi
rm /image.tar
docker --version
podman --version

mapfile -t go </test/go
for page in /test/pages/*; do
	runuser -u newcomer -- env HOME=/home/newcomer USER=newcomer LOGNAME=newcomer GOPROXY="${go[0]}" GOSUMDB="${go[1]}" FAKECUDA_STATE=/card/state \
		PATH=/usr/local/bin:/usr/bin:/bin bash -c 'cd; [ ! -d gpuslice ] || cd gpuslice; . /test/typed.sh' typed.sh "$page" | tee /test/said
	read -r p _ f _ s _ < <(tail -n 1 /test/said | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' || echo 0 0 1 0 0 0)
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	[[ $page != */0 || $f = 0 ]] || finish # nothing is installed
done
finish
