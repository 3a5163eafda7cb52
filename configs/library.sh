# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# The interceptor's place on a host, for install.sh and for the packages' scripts. Each build of it has a directory of its own,
# LIBDIR/VERSION-SUM, which never changes; LIBDIR/libgpuslice.so links to the newest.
#
# A session (`gpuslice run`) has the path in LD_PRELOAD: without the file, its next programs would run without a quota, and with another
# file, with a different library than its siblings. So a library is kept until nothing uses it. (A container has the file itself bound, and
# would keep it.)

# gpuslice_users TEXT: the pids of the processes that have TEXT in their environment, or in a path of their mappings or mounts.
gpuslice_users() {
	[ -e /proc/self/maps ] || return 0
	(
		cd /proc
		for file in environ maps mountinfo; do
			grep -lsaF -e "$1" [0-9]*/$file || true # processes exit during the search
		done
	) | cut -d/ -f1 | sort -nu | tr '\n' ' '
}

# gpuslice_prune LIBDIR KEEP…: remove unused libraries, except the directories KEEP. Reports those that are in use.
gpuslice_prune() (
	dir=$1
	shift
	for library in "$dir"/*-????????/libgpuslice.so; do
		name=${library%/libgpuslice.so}
		name=${name##*/}
		case " $* " in *" $name "*) continue ;; esac
		[ -e "$library" ] || continue
		users=$(gpuslice_users "/$name/libgpuslice.so")
		if [ -n "$users" ]; then
			echo "  $library stays while it is in use (by process ${users%% *})"
		else
			rm -r "${library%/*}"
		fi
	done
)

# gpuslice_add FILE LIBDIR VERSION: add a library and link LIBDIR/libgpuslice.so to it. It removes unused ones first, but keeps the previous
# newest one until the next call: a process may just have looked it up.
gpuslice_add() (
	set -e
	dir=$2
	sum=$(sha256sum <"$1")
	name=$3-${sum%"${sum#????????}"}
	former=$(readlink "$dir/libgpuslice.so" 2>/dev/null || true)
	gpuslice_prune "$dir" "$name" "${former%%/*}"
	if [ ! -e "$dir/$name/libgpuslice.so" ]; then
		mkdir -p "$dir/$name"
		chmod 0755 "$dir" "$dir/$name"
		cp "$1" "$dir/$name/new.$$"
		chmod 0644 "$dir/$name/new.$$"
		mv -f "$dir/$name/new.$$" "$dir/$name/libgpuslice.so"
	fi
	ln -sfn "$name/libgpuslice.so" "$dir/new.$$"
	mv -fT "$dir/new.$$" "$dir/libgpuslice.so"
	echo "  $dir/$name/libgpuslice.so"
)

# gpuslice_remove LIBDIR: remove every unused library, and LIBDIR with the last.
gpuslice_remove() {
	rm -f "$1/libgpuslice.so"
	gpuslice_prune "$1"
	rmdir "$1" 2>/dev/null || true
}
