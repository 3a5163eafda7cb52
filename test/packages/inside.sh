#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# inside.sh deb|rpm ARCH TAG SECOND: runs as the first process of check.sh's temporary Debian. The last line is
# "N passed, N failed".
# shellcheck disable=SC2317,SC2329 # functions are called by ok
set -uo pipefail
kind=$1 arch=$2 container=gpuslice-packages-$3 second=$4
passed=0 failed=0
ok() { # NAME COMMAND…
	local name=$1
	shift
	if "$@" >/tmp/said 2>&1; then
		echo "ok   $kind: $name"
		passed=$((passed + 1))
	else
		echo "FAIL $kind: $name"
		cat /tmp/said
		failed=$((failed + 1))
	fi
}
finish() {
	runtime delete --force "$container" >/dev/null 2>&1
	[ "$failed" = 0 ] || tail -20 /run/gpusliced.log
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
	exit
}
fatal() { # WHY FILE…: end with the text of the files
	echo "FAIL $kind: $1"
	[ $# = 1 ] || cat "${@:2}"
	failed=$((failed + 1))
	finish
}
until_true() { # COMMAND…: for ten seconds
	local i
	for ((i = 0; i < 500; i++)); do
		! "$@" >/dev/null 2>&1 || return 0
		sleep 0.02
	done
	return 1
}

case $kind in
deb)
	install_() { dpkg -i "/test/gpuslice_$1_$arch.deb"; }
	remove() { dpkg --remove gpuslice; }
	;;
rpm)
	install_() { rpm -U --nodeps --force "/test/gpuslice_$1_$arch.rpm"; }
	remove() { rpm -e gpuslice; }
	rpm --initdb
	;;
esac
GiB=$((1 << 30))
io=/tmp/io
mkdir "$io"
runtime() { gpuslice-runtime --root /run/runc "$@"; }

# Every file but the package managers' own.
listing() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /test -o -path /var/lib/dpkg -o -path /var/lib/rpm \
		-o -path /var/log -o -path /run/runc \) -prune -o -print | grep -vE '^/etc/(group|gshadow)-$' | sort
	find /run -mindepth 1 ! -path '/run/runc*' ! -name 'systemctl.log' ! -path '/run/gpusliced.log' | sort
	getent group
}

mkdir -p /run/systemd/system
mkdir -p /etc/systemd/system/multi-user.target.wants /usr/lib/sysusers.d && touch /usr/lib/sysusers.d/basic.conf
# Scripts of a .rpm look here, too: rpm gives them a PATH of its own.
install -m 0755 /test/systemctl /usr/bin/systemctl
listing >/tmp/before

# --- installed ---------------------------------------------------------------------------------------

library() { readlink -e /usr/lib/gpuslice/libgpuslice.so; }
library_is_of() { # VERSION
	local path
	path=$(library) && [[ $path == /usr/lib/gpuslice/$1-????????/libgpuslice.so ]] && cmp "$path" /usr/lib/gpuslice/packaged/libgpuslice.so
}
is_installed() {
	local mode
	mode=$(stat -c '%U %G %a' /etc/gpuslice/config.toml) && [ "$mode" = "root root 644" ] && getent group gpuslice && library_is_of 0.0.1
}
is_served() {
	local mode
	gpuslice version | grep ^gpusliced && mode=$(stat -c '%G %a' /run/gpuslice/gpuslice.sock) && [ "$mode" = "gpuslice 660" ]
}
enabled_and_started() {
	grep -qx 'enable gpusliced.service' /run/systemctl.log && grep -qx 'restart gpusliced.service' /run/systemctl.log &&
		[ -L /etc/systemd/system/multi-user.target.wants/gpusliced.service ]
}
install_ 0.0.1 >/tmp/said 2>&1 || fatal "not installed" /tmp/said
ok "installed: files, group, library" is_installed
ok "the daemon is enabled and started" enabled_and_started
ok "it serves the group" is_served
older=$(library) || fatal "no library"

# --- upgraded while slices are in use ------------------------------------------------------------------

# A container of the host's own directories, as in test/demo, and a session. In each a process holds 1 GiB of 4, and continues when its file
# in $io is removed: it then requests 1 GiB five times, of which two fit beside its context.
export LD_LIBRARY_PATH=/test/fakecuda FAKECUDA_STATE=/tmp/card
bundle() {
	mkdir -p /tmp/bundle/rootfs/{proc,dev,etc,tmp,usr,test}
	local mounts='' link
	for link in bin sbin lib lib64; do
		ln -s "usr/$link" "/tmp/bundle/rootfs/$link"
	done
	for link in "/usr ro" "/test ro" "/tmp rw"; do
		mounts+=$(printf ',{"destination":"%s","source":"%s","type":"bind","options":["rbind","%s"]}' "${link% *}" "${link% *}" "${link#* }")
	done
	cat >/tmp/bundle/config.json <<CONFIG
{"ociVersion": "1.0.2",
 "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sleep", "600"], "noNewPrivileges": true,
  "env": ["PATH=/usr/bin", "LD_LIBRARY_PATH=/test/fakecuda", "FAKECUDA_STATE=/tmp/card"]},
 "root": {"path": "rootfs"},
 "annotations": {"gpuslice.vram": "4G"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}$mounts],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
  "resources": {"devices": [{"allow": true, "access": "rwm"}]}}}
CONFIG
}
begin_slices() {
	rm -f "$io"/*
	runtime run --detach --bundle /tmp/bundle "$container" </dev/null >/tmp/container.log 2>&1 || return
	runtime exec "$container" /test/asker "$GiB" "$GiB" 5 "$io/container" >"$io/container.out" 2>&1 </dev/null &
	# Its second process starts when the first has exited, with another version installed by then.
	gpuslice run --quiet --vram 4G -- sh -c "/test/asker $GiB $GiB 5 $io/session; /test/asker $GiB $GiB 5; true" >"$io/session.out" 2>&1 </dev/null &
	until_true test -e "$io/container" -a -e "$io/session"
}
go_on() {
	rm "$io/container" "$io/session"
	wait
}
says() { # NAME TEXT
	diff - "$io/$1.out" <<<"$2"
}
in_ps() {
	local count
	count=$(gpuslice ps --json | grep -c "\"used\": $GiB") && [ "$count" = 2 ]
}
no_slices() {
	local slices
	slices=$(gpuslice ps --json) && [ "$slices" = "[]" ]
}
end_slices() { runtime delete --force "$container" && until_true no_slices; }

bundle
begin_slices || fatal "no slices" /tmp/container.log "$io"/*.out
ok "a container and a session hold 1 GiB each" until_true in_ps
echo '# edited' >>/etc/gpuslice/config.toml
daemon=$(cat /run/gpusliced.pid) || fatal "no daemon"
install_ "$second" >/tmp/said 2>&1 || fatal "not upgraded" /tmp/said
is_another() {
	local pid
	pid=$(cat /run/gpusliced.pid) && [ "$pid" != "$daemon" ]
}
ok "upgraded: the daemon is another" is_another
ok "upgraded: the slices go on" until_true in_ps
ok "upgraded: an edited configuration stays" grep -qx '# edited' /etc/gpuslice/config.toml
ok "upgraded: new ones get the new library" library_is_of "$second"
ok "upgraded: the old library stays for the old ones" test -s "$older"
go_on
ok "a process in the container gets what fits, and no more" says container "refused 3"
ok "so does one in the session, and one that is started later" says session $'refused 3\nrefused 3'
later() { runtime exec "$container" /test/asker "$GiB" "$GiB" 5 </dev/null >"$io/later.out" && says later "refused 3"; }
ok "so does one that is started in the container later" later
ok "the slices end" end_slices
install_ "$second" >/tmp/said 2>&1 || fatal "not installed again" /tmp/said
ok "installed again: the library is there" library_is_of "$second"
ok "installed again: the old, unused library is gone" test ! -e "$older"

# --- removed while slices are in use ---------------------------------------------------------------------

mkdir -p /etc/containers
gpuslice install podman >/tmp/said 2>&1 || fatal "gpuslice install podman" /tmp/said
ok "an engine knows the runtime" grep -rq gpuslice-runtime /etc/containers
begin_slices || fatal "no slices" /tmp/container.log "$io"/*.out
newer=$(library) || fatal "no library"
refused() { ! remove >/tmp/removed 2>&1 && test -x /usr/bin/gpuslice-runtime -a -e /run/gpusliced.pid && grep -q 'End these first' /tmp/removed; }
ok "not removed while slices are in use" refused
GPUSLICE_FORCE=1 remove >/tmp/removed 2>&1 || fatal "not removed" /tmp/removed
unknown() {
	grep -rl gpuslice /etc/containers
	[ $? = 1 ]
}
ok "removed: no engine knows the runtime any more" unknown
ok "removed: the daemon is stopped" test ! -e /run/gpusliced.pid
no_programs() { ! compgen -G '/usr/bin/*gpuslice*'; }
ok "removed: the programs are gone" no_programs
ok "removed by force: what is left is said" grep -q 'removed while in use' /tmp/removed
ok "removed: the library stays while it is used" test -s "$newer"
ok "removed: that is said" grep -q "stays while it is in use" /tmp/removed
case $kind in
deb) ok "removed: the configuration stays" grep -qx '# edited' /etc/gpuslice/config.toml ;;
rpm) ok "removed: the edited configuration is set aside" grep -qx '# edited' /etc/gpuslice/config.toml.rpmsave ;;
esac
go_on
ok "a process in the container gets what fits, and no more" says container "refused 3"
unattached() { # asker exits silently without its memory
	local count
	grep -qx "refused 3" "$io/session.out" && count=$(grep -c ^refused "$io/session.out") && [ "$count" = 1 ]
}
ok "so does one in the session, and one that is started later gets nothing" unattached
runc --root /run/runc delete --force "$container" >/dev/null 2>&1 # its hook is gone

# --- installed again, and purged ---------------------------------------------------------------------------

[ "$kind" = deb ] || mv /etc/gpuslice/config.toml.rpmsave /tmp/
install_ "$second" >/tmp/said 2>&1 || fatal "not installed after it was removed" /tmp/said
ok "installed after a removal: the daemon runs" is_served
ok "no slice is left" until_true no_slices
case $kind in
deb) ok "purged" dpkg --purge gpuslice ;;
rpm) ok "removed, with nothing in use" remove ;;
esac
left() {
	if [ "$kind" = rpm ]; then # the custom of such packages
		groupdel gpuslice
	fi
	rm -rf /etc/containers
	listing | diff /tmp/before -
}
ok "nothing is left" left
finish
