#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Install below an empty directory, check the files, install again, uninstall: only the configuration may be left. systemd must accept the
# unit and rate it confined enough. The rights that the unit leaves the daemon must suffice to serve a session and to stop a container, also
# with limits in the driver.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
if [ "$EUID" != 0 ]; then
	echo "check-install: it makes mounts and cgroups: run this as root" >&2
	exit 1
fi
root=$(mktemp -d /tmp/gpuslice-install.XXXXXX) # short: a socket's address has 108 bytes
session=
strace='' container='' cgroup='' card=/dev/shm/gpuslice-install-$$
[ -w /dev/shm ] || card=$root/var/lib/gpuslice/card
cleanup() {
	local process lock
	lock=$(cat "$root/var/lib/gpuslice/lock" 2>/dev/null) || lock=
	for process in $strace $lock $session $container; do
		kill -9 "$process" 2>/dev/null || true
	done
	wait
	[ -z "$cgroup" ] || rmdir "$cgroup"
	rm -rf "$root" "$card"
}
trap cleanup EXIT
prefix=/opt/gpuslice
installed=(make --no-print-directory DESTDIR="$root" PREFIX="$prefix")
# "Exposure" of ten by systemd-analyze; the unit explains the rest.
exposure=3.6
wrong() {
	echo "check-install: $*" >&2
	exit 1
}
failed() { # WHY: end with the last command's output
	cat "$root/said" >&2
	wrong "$@"
}
need() {
	command -v "$1" >/dev/null || wrong "no $1: test/deps.sh --ci"
}
for tool in systemd-analyze strace mandoc python3 findmnt setpriv; do
	need $tool
done

"${installed[@]}" install

# --- programs and the library ---------------------------------------------------------------------

bin=$root$prefix/bin
version=$("$bin/gpusliced" --version | awk '{print $NF}')
"$bin/gpuslice" version | grep -qF "$version" || wrong "gpuslice version is not gpusliced's, $version"
"$bin/gpuslice-hook" --version | grep -qF "$version" || wrong "gpuslice-hook's version is not $version"
"$bin/gpuslice-runtime" --version >/dev/null || wrong "gpuslice-runtime finds no runtime"
"$bin/gpuslice-leased" --version | grep -qF "$version" || wrong "gpuslice-leased's version is not $version"
"$bin/gpuslice-broker" --version | grep -qF "$version" || wrong "gpuslice-broker's version is not $version"
[ -x "$bin/containerd-shim-gpuslice-v1" ] || wrong "no containerd-shim-gpuslice-v1"
libdir=$root$prefix/lib/gpuslice
cmp bin/libgpuslice.so "$libdir/libgpuslice.so"
link=$(readlink "$libdir/libgpuslice.so")
[[ $link == "$version"-????????/libgpuslice.so ]] || wrong "the library is not the version's: $link"
if grep -rnI '/usr/local' "$root"; then
	wrong "another prefix than the one asked for"
fi

# --- manual pages -----------------------------------------------------------------------------------

found=$(find "$root$prefix/share/man" -type f)
pages=0
while read -r page; do
	pages=$((pages + 1))
	said=$(mandoc -T lint -W warning "$page" 2>&1) || wrong "mandoc: $said"
	if command -v man >/dev/null; then
		said=$(LC_ALL=C.UTF-8 man --warnings -l "$page" 2>&1 >/dev/null) || wrong "man $page failed"
		[ -z "$said" ] || wrong "man: $said"
	fi
done <<<"$found"
[ $pages = 6 ] || wrong "$pages manual pages, not 6"
keys=$(sed -n 's/^#\([a-z_]*\) *=.*/\1/p' configs/config.toml)
while read -r key; do
	grep -q "^\.It Ic $key " "$root$prefix/share/man/man5/gpuslice.toml.5" || wrong "gpuslice.toml(5) has no $key"
done <<<"$keys"

# --- the unit -----------------------------------------------------------------------------------------

units=/lib/systemd/system
# It resolves the units' ExecStart below the root, and needs systemd's own targets.
cp -r --parents $units "$root"
for unit in gpusliced gpuslice-leased; do
	if ! said=$(systemd-analyze verify --man=no --root="$root" $units/$unit.service 2>&1) || [ -n "$said" ]; then
		wrong "systemd-analyze: $said"
	fi
	said=$(systemd-analyze security --offline=true --threshold="${exposure/./}" "$root$units/$unit.service") || wrong "${said##*$'\n'} More than $exposure."
	echo "${said##*$'\n'}"
done
find "$root$units" -mindepth 1 ! -name gpusliced.service ! -name gpuslice-leased.service -delete

# calls SET…: the system calls in systemd's sets.
calls() {
	local set call members
	for set; do
		members=$(systemd-analyze syscall-filter "$set" | tail -n +2)
		while read -r call; do
			case $call in
			'#'* | '') ;;
			@*) calls "$call" ;;
			*) echo "$call" ;;
			esac
		done <<<"$members"
	done
}
# Lines are applied from top to bottom, as systemd does.
filters=$(sed -n 's/^SystemCallFilter=//p' configs/gpusliced.service)
allowed=
while read -r sets; do
	# shellcheck disable=SC2086 # words
	case $sets in
	'~'*)
		removed=$(calls ${sets#\~} | sort -u)
		allowed=$(comm -23 <(echo "$allowed") <(echo "$removed"))
		;;
	*) allowed=$({ echo "$allowed" && calls $sets; } | sort -u) ;;
	esac
done <<<"$filters"

# test/confined.sh starts gpusliced with the rights that the unit leaves it. The configuration has the installed defaults, except paths and
# limits in the driver. A session runs to its end; then a container's process that ignores SIGTERM is killed in time.
mkdir -p "$root"/{run,var/lib,var/log}/gpuslice
sed "s/^#\([[a-z]\)/\1/; /^\[\[/,/^max_sessions/d; s#\"/run/#\"$root/run/#; s#\"/var/#\"$root/var/#; s#^library = .*#library = \"$libdir/libgpuslice.so\"#
	s#^enforcement = .*#enforcement = \"native\"#; s#^grace = .*#grace = \"100ms\"#; s#^group = .*#group = \"daemon\"#
	s#^file = .*#file = \"$root/var/log/gpuslice/audit.jsonl\"#" configs/config.toml >"$root/config.toml"
cp -r bin/fakecuda "$root/fakecuda" # this may be below /tmp
export FAKECUDA_STATE=$card FAKECUDA_LIMITS=1 LD_LIBRARY_PATH=$root/fakecuda
logs=$root/var/log/gpuslice socket=$root/run/gpuslice/gpuslice.sock
test/confined.sh configs/gpusliced.service "$root" strace -ff -qq -o "$logs/strace" \
	"$bin/gpusliced" --config "$root/config.toml" 2>"$root/said" &
strace=$!
while [ ! -S "$socket" ]; do
	kill -0 $strace 2>/dev/null || failed "gpusliced does not start"
	sleep 0.02
done
daemon=$(cat "$root/var/lib/gpuslice/lock")
session=$daemon
"$bin/gpuslice" --socket "$socket" run --quiet --vram 2G -- bin/demo/cuda_hog 0
unified=$(findmnt --noheadings --types cgroup2 --output TARGET | head -1) || unified=
[ -n "$unified" ] || wrong "no cgroups of version 2 are mounted"
cgroup=$(mktemp -d "$unified/gpuslice-install.XXXXXX")
sh -c 'trap "" TERM; echo $$ >"$0/cgroup.procs" && exec sleep 600' "$cgroup" &
container=$!
until grep -q "^$container$" "$cgroup/cgroup.procs"; do
	kill -0 $container 2>/dev/null || wrong "a process does not get into a cgroup below $unified"
	sleep 0.02
done
python3 - "$socket" "$container" <<'EOF'
import http.client, json, socket, sys
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
request = {"id": "c", "container": "c", "pid": int(sys.argv[2]), "quotas": [{"device": "*", "bytes": 1 << 30}], "ttl": 10**9}
connection.request("POST", "/v1/slices", json.dumps(request), {"Content-Type": "application/json"})
answer = connection.getresponse()
if answer.status // 100 != 2:
    sys.exit(answer.read().decode())
EOF
wait "$container" 2>/dev/null || true # it is killed, or the step takes too long
container=
# Each thread has a file of its own, so no other interrupts a line. Linux has cgroup.kill since 5.14.
[ ! -e "$cgroup/cgroup.kill" ] || grep -qh '"cgroup.kill", O_WRONLY|O_CLOEXEC.* = [0-9]' "$logs"/strace.* || failed "a container was not ended by cgroup.kill"
kill "$daemon"
wait $strace || failed "gpusliced failed"
session='' strace=''
# A short stall of the machine is no fault of the confinement.
if grep 'level=\(WARN\|ERROR\)' "$root/said" | grep -v "the driver does not answer"; then
	wrong "confined, gpusliced lacks something"
fi
used=$(grep -hoE '^[a-z0-9_]+\(' "$logs"/strace.* | tr -d '(' | sort -u)
mapfile -t lines <<<"$used"
[ ${#lines[@]} -gt 20 ] || wrong "strace saw nothing"
# prlimit64 comes from the Go runtime, and may fail.
refused=$(comm -23 <(echo "$used") <(echo "$allowed") | { grep -vx prlimit64 || true; })
[ -z "$refused" ] || wrong "the unit's SystemCallFilter refuses what gpusliced calls: $refused"
rm -rf "${root:?}"/{run,var,fakecuda,config.toml,said}

# --- again, with another library; an existing one is never overwritten ------------------------------------

echo '# edited' >>"$root/etc/gpuslice/config.toml"
old=$(readlink -e "$libdir/libgpuslice.so")
inode=$(stat -c %i "$old")
same_library() {
	local now
	now=$(stat -c %i "$old") && [ "$now" = "$inode" ]
}
"${installed[@]}" install >/dev/null
grep -q '^# edited' "$root/etc/gpuslice/config.toml" || wrong "the configuration was overwritten"
same_library || wrong "the library was replaced"
LD_PRELOAD=$old sleep 600 &
session=$!
until grep -qsF "$old" "/proc/$session/maps"; do
	kill -0 $session 2>/dev/null || wrong "a process with the library has ended"
	sleep 0.02
done
. configs/library.sh
for text in second third fourth; do
	echo "$text" >"$root/$text"
	gpuslice_add "$root/$text" "$libdir" "$version" >"$root/said"
	cmp "$root/$text" "$libdir/libgpuslice.so"
	same_library || wrong "a library that is in use was removed"
done
grep -q "$old stays while it is in use (by process $session)" "$root/said" || failed "it does not say that the library is in use"
found=$(find "$libdir" -name libgpuslice.so -type f)
mapfile -t libraries <<<"$found"
[ ${#libraries[@]} = 3 ] || wrong "libraries: ${libraries[*]}: want the one in use, the newest and the one before"
"${installed[@]}" uninstall
left=$(find "$libdir" -type f)
[ "$left" = "$old" ] || wrong "uninstall: libraries: $left, want that in use"
kill "$session"
wait "$session" 2>/dev/null || true
session=
rm "$root"/{second,third,fourth,said}
"${installed[@]}" uninstall >/dev/null
left=$(find "$root" ! -type d)
[ "$left" = "$root/etc/gpuslice/config.toml" ] || wrong "left behind: $left"
echo "check-install: ok"
