#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# inside.sh TAG: what newcomer.sh runs as the first process of a throw-away Debian. The last line is "N passed, N failed".
# shellcheck disable=SC2317,SC2329 # functions are called by what is typed
set -uo pipefail
cgroup=newcomer-$1 passed=0 failed=0 began=$SECONDS

cp -r /test/apt/apt.conf.d /etc/apt/
cp -r /test/ssl/certs /etc/ssl/
cp /test/resolv.conf /test/hosts /etc/
mapfile -t go </test/go
export GOPROXY=${go[0]} GOSUMDB=${go[1]}
install -m 755 /test/systemctl /usr/local/bin/systemctl
mkdir -p /card /etc/docker /var/lib/docker
mount -t tmpfs none /var/lib/docker # overlay does not stack on what this root is
# The simulated driver is where a driver would be, once it is built.
echo /gpuslice/bin/fakecuda >/etc/ld.so.conf.d/driver.conf
export FAKECUDA_STATE=/card/state

finish() {
	[ "$failed" = 0 ] || tail -n 40 /tmp/said /var/log/gpusliced.log 2>/dev/null
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
	exit
}
# typed COMMAND: as a person types it, in the directory that the one before it left.
typed() {
	local begin=$SECONDS status=0
	eval "$1" >/tmp/said 2>&1 || status=$?
	printf '%5d s  %-6s  %s\n' $((SECONDS - begin)) "$([ $status = 0 ] && echo ok || echo FAILED)" "$1"
	if [ $status = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		finish
	fi
}

# What the machine has before: Docker, with an image.
cat >/etc/docker/daemon.json <<JSON
{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "cgroup-parent": "/$cgroup", "exec-opts": ["native.cgroupdriver=cgroupfs"]}
JSON
setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
for ((i = 0; i < 600; i++)); do
	! docker version >/dev/null 2>&1 || break
	sleep 0.1
done
tar -C / -c bin lib lib64 sbin usr/bin usr/lib/x86_64-linux-gnu usr/lib64 etc/passwd 2>/dev/null | docker import - pytorch/pytorch >/dev/null || {
	failed=1
	finish
}
docker() { # as without a network, a GPU and PyTorch
	local words=() word
	for word; do
		case $word in
		all) ;;
		--gpus) words+=(--network none -v /gpuslice/bin:/bin-of-it -v /card:/card -e LD_LIBRARY_PATH=/bin-of-it/fakecuda -e FAKECUDA_STATE=/card/state) ;;
		python) words+=(/bin-of-it/demo/cuda_hog 0) ;;
		train.py) ;;
		*) words+=("$word") ;;
		esac
	done
	command docker "${words[@]}"
}
git() { command git -c url.file:///test/gpuslice.git.insteadOf=https://github.com/gpuslice/gpuslice "$@"; }

cd / || exit
while read -r line; do
	ldconfig
	chmod -R a+rwX /card
	typed "$(sed -E 's/  +#.*$//' <<<"$line")"
done </test/commands
cat /tmp/said
if grep -q ' of 4294967296$' /tmp/said; then
	echo "ok   the program sees a card of 4 GiB"
	passed=$((passed + 1))
else
	failed=$((failed + 1))
fi
echo "$((SECONDS - began)) s from the clone to the container"
finish
