#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Systemd runs this on the host of inside.sh: it checks the two units.
#
# shellcheck disable=SC2312,SC2317,SC2329 # an empty value fails a comparison; functions are called by check
set -uo pipefail
export LC_ALL=C.UTF-8
passed=0 failed=0
check() { # NAME COMMAND…
	local name=$1
	shift
	if "$@" >/tmp/said 2>&1; then
		echo "ok   $name"
		passed=$((passed + 1))
	else
		echo "FAIL $name"
		cat /tmp/said
		journalctl --no-pager -o cat -n 20 -u gpusliced -u gpuslice-leased
		failed=$((failed + 1))
	fi
}
alice() { su alice -c "$1"; }
# says WORDS COMMAND…: the command prints them. A program that holds memory is ended then.
says() {
	local words=$1 pid found=1
	shift
	"$@" >/tmp/out 2>&1 &
	pid=$!
	for _ in {1..600}; do
		kill -0 "$pid" 2>/dev/null || break
		grep -qF -- "$words" /tmp/out && break
		sleep 0.1
	done
	pkill -KILL -x cuda_hog
	wait "$pid"
	grep -qF -- "$words" /tmp/out && found=0
	cat /tmp/out
	return "$found"
}
gone() {
	for _ in {1..600}; do
		gpuslice inspect "$1" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	return 1
}
pid_of() { systemctl show --property MainPID --value "$1"; }

# contained BYTES: cuda_hog in a container with 2 GiB.
contained() {
	local bundle=/root/bundle
	rm -rf "$bundle" && mkdir -p "$bundle"/rootfs/{proc,dev,sys,etc,tmp,usr} && cd "$bundle" && runc spec || return
	ln -s usr/bin usr/lib usr/lib64 rootfs/
	sed -i 's/"ociVersion"/"annotations": {"gpuslice.vram": "2G"}, &/; s/"terminal": true/"terminal": false/
		s/"sh"$/"cuda_hog", "'"$1"'"/; s#"TERM=xterm"#"FAKECUDA_STATE=/dev/shm/units"#
		s#"mounts": \[#&{"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},#
		/"destination": "\/dev\/shm"/,/}/{s/"tmpfs"/"bind"/; s#"shm"#"/dev/shm"#; s/"mode=1777"/"rbind"/; s/"size=65536k"/"rw"/}' config.json
	gpuslice-runtime run "units-$1"
}

# sandboxed UNIT: no new privileges, a filter of system calls, and a root that cannot be written.
sandboxed() {
	local pid
	pid=$(pid_of "$1")
	grep -q '^NoNewPrivs:.1$' "/proc/$pid/status" && grep -q '^Seccomp:.2$' "/proc/$pid/status" &&
		[[ $(awk '$5 == "/" { options = $6 } END { print options }' "/proc/$pid/mountinfo") == ro* ]]
}

# in_table: each file is in docs/evidence/modes.md with its mode and owner. The unit makes RUN, with another mode.
in_table() {
	# shellcheck disable=SC2016 # the backquotes are text
	sed -n 's/^| `\([^`]*\)` | `\([^`]*\)` | \([^|]*\) |.*/\1 \2 \3/p' /test/modes.md | sed 's#^RUN#/run/gpuslice#
		s#^STATE#/var/lib/gpuslice#
		s#^LEASES#/run/gpuslice/leases#
		s#^SOCKETS#/run/gpuslice#' >/tmp/rows
	find /run/gpuslice /var/lib/gpuslice -mindepth 1 -exec stat -c '%A %U %n' {} + | sed 's/^s/S/' >/tmp/files
	[ -s /tmp/rows ] && [ "$(wc -l </tmp/files)" -gt 20 ] || return 1
	local mode owner path pattern row_mode row_owner found wrong=0
	while read -r mode owner path; do
		found=
		while read -r pattern row_mode row_owner; do
			# shellcheck disable=SC2053 # it is a pattern; its * is one name
			[[ $path == $pattern && ${path//[^\/]/} == "${pattern//[^\/]/}" ]] || continue
			case $mode:$row_mode in "$mode:$mode" | Srw-rw----:Srw-------) ;; *) continue ;; esac # the control socket is the group's, too
			case $row_owner:$owner in root:root | *user*:alice | *broker*:UNKNOWN) found=yes ;; esac
		done </tmp/rows
		[ -n "$found" ] || { echo "$mode $owner $path is not in the table" && wrong=1; }
	done </tmp/files
	return "$wrong"
}

check "both units start" systemctl start gpusliced gpuslice-leased
for unit in gpusliced gpuslice-leased; do
	check "$unit is ready" says active systemctl is-active "$unit"
	check "$unit is in its sandbox" sandboxed "$unit"
done
check "a container holds what fits" says "holds 536870912 of" contained 536870912
check "and is refused what does not" says "OUT_OF_MEMORY" contained 4294967296
check "a user's session holds what fits" says "holds 536870912 of" alice 'gpuslice run --require-host --vram 2G -- cuda_hog 536870912'
check "and is refused what does not" says "OUT_OF_MEMORY" alice 'gpuslice run --require-host --vram 2G -- cuda_hog 4294967296'
check "a user gets a lease" says "session.sock" alice 'gpuslice lease acquire --vram 1G --ttl 10m'
alice 'gpuslice run --quiet --require-host --name work --vram 2G -- work_hog 536870912' >/tmp/work &
for _ in {1..600}; do
	grep -q holds /tmp/work && break
	sleep 0.1
done
session=u$(id -u alice)-work
check "the session is suspended" gpuslice suspend "$session"
check "and resumed" gpuslice resume "$session"
check "each file has its mode and owner" in_table
check "a restart keeps the lease" eval 'systemctl restart gpusliced gpuslice-leased && says lease- alice "gpuslice lease list"'
check "and the session" says "active" alice 'gpuslice ps'
check "its time is set" gpuslice set --ttl 1s "$session"
check "and ends it" gone "$session"
wait
check "both units stop" systemctl stop gpuslice-leased gpusliced
echo "$passed passed, $failed failed, 0 skipped"
