#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# One container with 4 GiB of VRAM, and several processes in it. Each step shows what it saw, and is checked: the
# exit code is 0 only if every promise was kept. It needs bin/ (make demo), root and runc; a GPU is used if there
# is one. RUNC names another low-level runtime; GPUSLICE_DRIVER=simulated leaves a GPU alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
. test/driver.sh
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

bold='' plain=''
if [ -t 1 ]; then
	bold=$'\033[1m' plain=$'\033[0m'
fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
saw() { printf '    %s\n' "$*"; }
broken() {
	printf '\ndemo: PROMISE NOT KEPT: %s\n' "$*" >&2
	[ ! -s "$work/gpusliced.log" ] || tail -20 "$work/gpusliced.log" >&2
	exit 1
}
impossible() {
	echo "demo: $*" >&2
	exit 1
}

if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || impossible "a container needs root here, and there is no sudo"
	echo "A container needs root here:"
	exec sudo env RUNC="${RUNC:-runc}" GPUSLICE_DRIVER="${GPUSLICE_DRIVER:-}" "$root/test/demo/demo.sh"
fi
runc=$(command -v "${RUNC:-runc}") || impossible "there is no ${RUNC:-runc}: make deps, or RUNC=/path/to/runc"
runc=$(realpath "$runc")

work=$(mktemp -d /tmp/gpuslice-demo.XXXXXX)
container=gpuslice-demo-$$
enforcer_pid=

# shellcheck disable=SC2317,SC2329 # called by trap
cleanup() {
	local status=$?
	trap - EXIT
	delete_container >/dev/null 2>&1 || true
	if [ -n "$enforcer_pid" ]; then
		kill "$enforcer_pid" 2>/dev/null || true
		wait "$enforcer_pid" 2>/dev/null || true
	fi
	rm -rf --one-file-system "$work"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

runtime() { "$root/bin/gpuslice-runtime" --root "$work/runc" "$@"; }
stopped() { runtime state "$container" | grep -q '"status": "stopped"'; }
# `runc delete --force` waits until the init is reaped; a zombie counts as stopped.
delete_container() {
	runtime kill "$container" KILL || true
	until_true 10 stopped || echo "its init does not end"
	runtime delete "$container"
}

until_true() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $deadline ] || return 1
		sleep 0.05
	done
}

MiB=$((1024 * 1024))
GiB=$((1024 * MiB))
quota=$((4 * GiB))

# --- a private enforcer -------------------------------------------------------------------------

mkdir "$work/run" "$work/state" "$work/fake"
cat >"$work/config.toml" <<CONFIG
[enforcer]
socket = "$work/run/gpuslice.sock"
run_dir = "$work/run"
state_dir = "$work/state"
library = "$root/bin/libgpuslice.so"

[runtime]
runtimes = ["$runc"]
CONFIG
export GPUSLICE_CONFIG=$work/config.toml
if [ "$driver" = simulated ]; then
	export FAKECUDA_STATE=$work/fake/state
	say "Driver: simulated, for there is no GPU here or it was asked for. Runtime, container and processes are real."
else
	say "Driver: real, $(sed -n '1s/.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version)"
fi
gpuslice() { "$root/bin/gpuslice" --socket "$work/run/gpuslice.sock" "$@"; }
table() { gpuslice ps | sed 's/^/    /'; }

# figure NAME: the first number of that name in `gpuslice ps --json`; 0 if there is none.
figure() { gpuslice ps --json | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" | head -1 | grep . || echo 0; }
figure_is() { [ "$(figure "$1")" = "$2" ]; }

LD_LIBRARY_PATH=$driver_dir "$root/bin/gpusliced" --config "$work/config.toml" 2>"$work/gpusliced.log" &
enforcer_pid=$!
until_true 10 gpuslice ps || broken "the enforcer does not answer"

# --- a container --------------------------------------------------------------------------------

# Its root consists of the host's own directories, read-only: any program of the host runs there.
rootfs=$work/bundle/rootfs
mkdir -p "$rootfs"/{proc,dev,etc,tmp,usr,demo,fake}
mounts=
mount_json() { mounts+=$(printf ',{"destination":"%s","source":"%s","type":"bind","options":["rbind","%s"]}' "$2" "$1" "$3"); }
mount_json /usr /usr ro
for name in bin sbin lib lib64 lib32; do
	if [ -L "/$name" ]; then
		cp -P "/$name" "$rootfs/$name"
	elif [ -d "/$name" ]; then
		mkdir "$rootfs/$name"
		mount_json "/$name" "/$name" ro
	fi
done
cp /etc/ld.so.cache "$rootfs/etc/" 2>/dev/null || true
cp "$root/bin/demo/cuda_hog" "$rootfs/demo/"
mount_json "$work/fake" "$work/fake" rw
mkdir -p "$rootfs$work/fake"
env='"PATH=/usr/local/bin:/usr/bin:/bin"'
if [ "$driver" = simulated ]; then
	cp "$root"/bin/fakecuda/*.so* "$rootfs/fake/"
	env+=",\"LD_LIBRARY_PATH=/fake\",\"FAKECUDA_STATE=$FAKECUDA_STATE\""
else
	for device in /dev/nvidia*; do
		mount_json "$device" "$device" rw
	done
	# The driver's libraries may be mounted one by one, outside /usr.
	libcuda=$(/sbin/ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*=> //p' | head -1)
	env+=",\"LD_LIBRARY_PATH=$(dirname "$libcuda")\""
	case $libcuda in
	/usr/* | /lib/* | /lib64/*) ;;
	*) mount_json "$(dirname "$libcuda")" "$(dirname "$libcuda")" ro ;;
	esac
fi
cat >"$work/bundle/config.json" <<CONFIG
{
  "ociVersion": "1.0.2",
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": [$env], "args": ["/bin/sleep", "600"],
    "capabilities": {"bounding": [], "effective": [], "permitted": []}, "noNewPrivileges": true},
  "root": {"path": "rootfs"},
  "hostname": "demo",
  "annotations": {"gpuslice.vram": "4G"},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}$mounts],
  "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
    "resources": {"devices": [{"allow": true, "access": "rwm"}]}}
}
CONFIG

say "1. A runc container with the annotation gpuslice.vram=4G"
runtime run --detach --bundle "$work/bundle" "$container" </dev/null >"$work/container.log" 2>&1 ||
	broken "the container was not created: $(cat "$work/container.log")"
table
figure_is limit $quota || [ "$(figure limit)" = 0 ] || broken "the limit is $(figure limit)"

# hog NAME BYTES: start a process in the container that allocates BYTES. Its pid on the host is in NAME.pid. The runtime stays and reaps it:
# a zombie would keep the container's init from exiting, and not every host's first process reaps.
hog() {
	runtime exec --pid-file "$work/$1.pid" "$container" /demo/cuda_hog "$2" </dev/null >"$work/$1" 2>&1 &
	until_true 30 test -s "$work/$1" || broken "process $1 says nothing"
	saw "process $1 (pid $(cat "$work/$1.pid")): $(in_words "$(cat "$work/$1")")"
}
in_words() {
	local bytes total
	if [[ $1 =~ ^holds\ ([0-9]+)\ of\ ([0-9]+)$ ]]; then
		bytes=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
		echo "holds $((bytes / MiB)) MiB of a card of $((total / MiB)) MiB"
	elif [[ $1 == *": CUDA_ERROR_OUT_OF_MEMORY" ]]; then
		echo "refused: $1"
	else
		echo "$1"
	fi
}
holds() { [ "$(cat "$work/$1")" = "holds $2 of $quota" ]; }

say "2. Two processes take 1 GiB each; each sees a card of 4 GiB"
hog A $GiB
holds A $GiB || broken "process A should hold 1 GiB of a card of 4 GiB"
hog B $GiB
holds B $GiB || broken "process B should hold 1 GiB of a card of 4 GiB"
table
figure_is used $((2 * GiB)) || broken "2 GiB are used, gpuslice ps says $(figure used)"
figure_is limit $quota || broken "the limit is 4 GiB, gpuslice ps says $(figure limit)"
overhead=$(figure overhead)
saw "(OVERHEAD is what the two CUDA contexts take of the card. It counts, too.)"
[ $((2 * GiB + overhead)) -le $quota ] || broken "used and overhead pass the limit"

# This fits beside one of them and not beside both, whatever a context costs on this card.
third=$((quota - 2 * GiB - overhead + 256 * MiB))
say "3. A third wants $((third / MiB)) MiB, which is more than is left beside both: it is refused"
hog C $third
[ "$(cat "$work/C")" = "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY" ] || broken "process C should be refused"
figure_is used $((2 * GiB)) || broken "a refusal changed what is used: $(figure used)"

say "4. kill -9 of B; the next takes its bytes at once"
kill -9 "$(cat "$work/B.pid")"
saw "process B (pid $(cat "$work/B.pid")): killed"
hog D $third
holds D $third || broken "process D should get what B held"
table
until_true 10 figure_is used $((GiB + third)) || broken "A and D hold $((GiB + third)), gpuslice ps says $(figure used)"
[ $((GiB + third + $(figure overhead))) -le $quota ] || broken "used and overhead pass the limit"

say "5. All of them end: the container holds nothing"
kill -9 "$(cat "$work/A.pid")" "$(cat "$work/D.pid")"
until_true 10 figure_is used 0 || broken "the dead hold $(figure used)"
until_true 10 figure_is overhead 0 || broken "the dead hold $(figure overhead) of overhead"
table

say "6. The container is deleted, and its slice with it"
delete_container >"$work/delete.log" 2>&1 || broken "the container is not deleted: $(cat "$work/delete.log")"
[ "$(gpuslice ps --json)" = "[]" ] || broken "the slice is still there"
saw "gpuslice ps lists nothing"

say "Every promise was kept:"
saw "The container's processes shared 4 GiB and saw a card of that size."
saw "What did not fit was refused with CUDA's own error, and what a killed process held was free at once."
if [ "$driver" = simulated ]; then
	saw "(With the simulated driver. On a machine with an NVIDIA GPU, \`make demo\` uses that.)"
fi
saw "Next: sudo make install, and docs/operate/install.md for your engine."
