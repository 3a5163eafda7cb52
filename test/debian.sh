# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2164,SC2312
#
# To be sourced, with `set -e`: root filesystems of Debian and Ubuntu, which debootstrap makes once, and commands that run as the first
# process of a temporary one.

# debian_made BASE SUITE PACKAGES: make the directory BASE, unless it exists. A concurrent caller waits.
debian_made() {
	local base=$1 mirror log kind=debian script=/usr/share/debootstrap/scripts/$2
	mkdir -p "${base%/*}"
	exec 9>"$base.lock"
	flock 9
	if [ ! -e "$base" ]; then
		echo "making a $2 in $base"
		# Ubuntu's suites share a script, also those that this debootstrap does not know; all of its packages are in two components.
		if [ ! -e "$script" ] || [ "$(readlink -f "$script")" = "${script%/*}/gutsy" ]; then
			kind=ubuntu script=${script%/*}/gutsy
		fi
		# shellcheck disable=SC2016 # the format is apt's
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 "/$kind/\$") ||
			mirror=$(sed -n 's|^[[:space:]]*default_mirror *\(.*//archive\..*\)|\1|p' "$script")
		rm -rf "$base.new"
		log=$(mktemp)
		debootstrap --variant=minbase --components="$([ $kind = debian ] && echo main || echo main,universe)" --include="$3" \
			"$2" "$base.new" "$mirror" "$script" >"$log" 2>&1 || {
			tail -5 "$log" >&2
			rm -f "$log"
			return 1
		}
		rm -rf "$log" "$base.new"/var/cache/apt/archives/*.deb
		mv "$base.new" "$base"
	fi
	flock -u 9
}

# debian_enter BASE WORK WORD…: become init of new namespaces, in a temporary root filesystem over BASE, and run /test/inside.sh WORD…
# there; /test is WORK/test.
debian_enter() {
	local base=$1 work=$2 root=$2/root
	shift 2
	mount --make-rprivate /
	mkdir -p "$root" "$work/over"
	mount -t tmpfs none "$work/over"
	mkdir "$work/over/upper" "$work/over/work"
	mount -t overlay -o "lowerdir=$base,upperdir=$work/over/upper,workdir=$work/over/work" none "$root"
	mkdir "$root/test" "$root/host"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t proc none "$root/proc"
	mount -t tmpfs -o mode=755 none "$root/run"
	mount -t tmpfs none "$root/tmp"
	mount --bind "$work/test" "$root/test"
	cd "$root"
	pivot_root . host
	umount -l /host
	rmdir /host
	cd /
	exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive /bin/bash /test/inside.sh "$@"
}

# debian_run BASE WORK WORD…: debian_enter in new namespaces. Sets `p` and `f` from the last line "N passed, N failed".
debian_run() {
	local status=0 work=$2
	unshare --mount --pid --fork --kill-child bash -euc 'debian_enter "$@"' debian "$@" </dev/null 2>&1 | tee "$work/log" || status=$?
	read -r p _ f _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$work/log" || echo 0 passed, 0 failed)
	[ "$status" = 0 ] || [ "$f" != 0 ] || f=1 # it ended before it could count
}
export -f debian_enter
