#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016,SC2317,SC2329 # slices' shells expand it; functions are called by trap and until_true
#
# playground.sh: run gpusliced on the simulated driver, with two cards and four slices, until Ctrl-C. It needs bin/ (make playground), neither a GPU
# nor root, and makes no container. Its files are bin/playground, which another terminal reads, and a directory below /tmp. Both are removed at the
# end, and each process in a slice is ended, also one that another terminal started.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
exec {lock}<bin
if ! flock -n "$lock"; then
	echo "playground: one runs here already: use it (. bin/playground), or press Ctrl-C in its terminal" >&2
	exit 1
fi
umask 022
work=$(mktemp -d /tmp/gpuslice-playground.XXXXXX)
daemon=
mkdir "$work/run" "$work/state"
cat >bin/playground <<ENV
export GPUSLICE_SOCKET='$work/run/gpuslice.sock'
export FAKECUDA_STATE='$work/cards' LD_LIBRARY_PATH='$root/bin/fakecuda' PATH='$root/bin:$root/bin/demo':"\$PATH"
ENV
# shellcheck source=/dev/null
. bin/playground

# end PID SIGNAL: signal a process and all below it. A stopped process starts no other one between the look at its children and the signal.
end() {
	local child state _
	kill -STOP "$1" 2>/dev/null || return 0
	for _ in {1..100}; do
		state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || true
		[[ $state != [RSD]* ]] && break
		sleep 0.01
	done
	for child in $(cat "/proc/$1"/task/*/children 2>/dev/null || true); do
		end "$child" "$2"
	done
	kill -"$2" "$1" 2>/dev/null || true
	kill -CONT "$1" 2>/dev/null || true
}

cleanup() {
	local status=$? i pid pids signal=TERM
	trap '' EXIT HUP INT TERM
	for ((i = 0; i < 200; i++)); do
		# The last of them may end in between; then the command that lists them fails, or prints nothing.
		pids=$(gpuslice ps --json 2>/dev/null | sed -n 's/^    "pid": \([0-9]*\),$/\1/p') || true
		[ -n "$pids" ] || break
		((i < 20)) || signal=KILL
		for pid in $pids; do end "$pid" "$signal"; done
		sleep 0.05
	done
	if [ -n "$daemon" ]; then
		kill "$daemon" 2>/dev/null || true
	fi
	wait
	rm -rf --one-file-system "$work" bin/playground
	exit "$status"
}
trap cleanup EXIT
trap 'exit 0' HUP INT TERM

failed() {
	cat "$work/log" >&2
	echo "playground: $* (gpusliced's log is above)" >&2
	exit 1
}

cat >"$work/config.toml" <<CONFIG
[enforcer]
socket = "$GPUSLICE_SOCKET"
run_dir = "$work/run"
state_dir = "$work/state"
library = "$root/bin/libgpuslice.so"
group = ""

[sessions]
socket = ""
CONFIG
# In a session of its own: after Ctrl-C, cleanup needs it to list the slices.
FAKECUDA_DEVICES=2 setsid gpusliced --config "$work/config.toml" {lock}<&- 2>"$work/log" &
daemon=$!

# until_true COMMAND…: try it again, for two minutes.
until_true() {
	local i
	for ((i = 0; i < 1200; i++)); do
		! "$@" >/dev/null 2>&1 || return 0
		kill -0 "$daemon" 2>/dev/null || failed "gpusliced has ended"
		sleep 0.1
	done
	failed "after two minutes this still fails: $*"
}
until_true gpuslice ps

GiB=$((1 << 30))
# slice NAME FLAG… -- SCRIPT [BYTES…]: a slice that runs a script.
slice() {
	local name=$1 flags=()
	shift
	while [ "$1" != -- ]; do
		flags+=("$1")
		shift
	done
	gpuslice run --quiet --name "$name" "${flags[@]}" -- sh -c "$2" "$name" "${@:3}" {lock}<&- >/dev/null 2>&1 &
}
grows='cuda_hog $1 & while :; do cuda_hog $2 & sleep 3; kill $!; sleep 2; done'
gpuslice pool create llm --vram 16G >/dev/null || failed "the pool cannot be created"
slice train --vram 8G --device 0 -- "$grows" $((4 * GiB)) $((2 * GiB))
slice chat --vram 24G --device 0 --elastic -- 'exec cuda_hog $1' $((20 * GiB))
slice serve --pool llm --vram 12G --device 1 -- "$grows" $((6 * GiB)) $GiB
slice greedy --vram 4G --device 1 -- 'cuda_hog $1 & while :; do cuda_hog $2; sleep 10; done' $((2 * GiB)) $((5 * GiB))
ready() {
	local with_process
	with_process=$(gpuslice ps --format '{{.Processes}}' | grep -c '[1-9]') && [ "$with_process" = 4 ] &&
		gpuslice explain greedy | grep -q 'was refused cuMemAlloc'
}
until_true ready

cat <<TEXT
gpusliced runs with two simulated cards and four slices. Ctrl-C ends it, and all that runs in its slices.
Type in another terminal:

    . $root/bin/playground
    gpuslice top
    gpuslice explain greedy
    gpuslice run --vram 4G -- cuda_hog 0

The first line is: export GPUSLICE_SOCKET=$GPUSLICE_SOCKET, and where programs find the simulated driver.
train is an ordinary slice, chat is elastic, serve is in the pool llm, and greedy is refused memory every ten seconds.
TEXT
wait "$daemon" || true
failed "gpusliced has ended"
