#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# newcomer.sh: what README.md has people type, from `git clone` to a Docker container with a quota, on a Debian 13 that has nothing
# but what debootstrap leaves, sudo and Docker; each command is timed. Of three things others stand in: the address that is cloned is this
# clone; `systemctl` is a script, since nothing here is init; and without a GPU and an image of PyTorch, the container is Debian's own files with the
# simulated driver, and its `python train.py` asks that how large the card is. The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "newcomer: it makes mounts, cgroups and a Docker: run this as root" >&2
	exit 1
fi
test/deps.sh --need newcomer debootstrap git
base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer/trixie-1
work=$(mktemp -d /tmp/gpuslice-newcomer.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

mkdir -p "${base%/*}"
exec 9>"$base.lock"
flock 9
if [ ! -e "$base" ]; then
	echo "newcomer: making a Debian in $base"
	# shellcheck disable=SC2016 # the format is apt's
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
	rm -rf "$base.new"
	debootstrap --variant=minbase --include=sudo,docker.io,docker-cli,ca-certificates trixie "$base.new" "$mirror" >"$work/log" 2>&1 || {
		tail -5 "$work/log" >&2
		exit 1
	}
	mv "$base.new" "$base"
fi
flock -u 9

# As this machine reaches what it installs.
mkdir -p "$work/host/apt" "$work/host/ssl"
cp -rL /etc/apt/apt.conf.d "$work/host/apt/"
cp -rL /etc/ssl/certs "$work/host/ssl/"
cp -L /etc/resolv.conf /etc/hosts "$work/host/"
"${GO:-$(test/go.sh)}" env GOPROXY GOSUMDB >"$work/host/go"
git clone -q --bare . "$work/host/gpuslice.git"
# shellcheck disable=SC2016 # it is a fence
sed -n '/^```console/,/^```$/p' README.md >"$work/host/commands"
cp test/newcomer/* "$work/host/"

enter() {
	local root=$work/root
	mount --make-rprivate /
	mkdir -p "$root" "$work/over"
	mount -t tmpfs none "$work/over"
	mkdir "$work/over/upper" "$work/over/work"
	mount -t overlay -o "lowerdir=$base,upperdir=$work/over/upper,workdir=$work/over/work" none "$root"
	mkdir "$root/machine" "$root/old"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t proc none "$root/proc"
	mount -t tmpfs -o mode=755 none "$root/run"
	mount -t tmpfs none "$root/tmp"
	mkdir "$root/var/lib/docker" 2>/dev/null || true
	mount -t tmpfs none "$root/var/lib/docker"
	mount --bind "$work/host" "$root/machine"
	cd "$root"
	pivot_root . old
	umount -l /old
	rmdir /old
	cd /
	exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive /bin/bash /machine/inside.sh "${work##*.}"
}
export -f enter
export work base
status=0
unshare --mount --pid --fork --kill-child bash -euc enter </dev/null 2>&1 | tee "$work/log" || status=$?
find /sys/fs/cgroup -depth -type d -path "*newcomer-${work##*.}*" -exec rmdir {} + 2>/dev/null || true
read -r p _ f _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$work/log" || echo 0 passed, 0 failed)
[ "$status" = 0 ] || [ "$f" != 0 ] || f=1 # it ended before it could count
echo "$p passed, $f failed, 0 skipped"
[ "$f" = 0 ]
