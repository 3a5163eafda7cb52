#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# start.sh [ROUNDS]: the cost of a slice in the life of a container. The same bundle (busybox's `true`) is created, started and deleted
# alternately by bare runc and by gpuslice-runtime over the same runc; medians in milliseconds, and the parts of the difference. Needs root,
# runc (or RUNC=path) and a static busybox.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-40}
runc=$(command -v "${RUNC:-runc}")
bin=$PWD/bin
busybox=${BUSYBOX:-/bin/busybox}
dir=$(mktemp -d)
daemon=
finish() {
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
	[ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT

cat >"$dir/config.toml" <<END
[enforcer]
socket = "$dir/run/gpuslice.sock"
run_dir = "$dir/run"
state_dir = "$dir/state"
library = "$bin/libgpuslice.so"
[runtime]
runtimes = ["$runc"]
END
export GPUSLICE_CONFIG=$dir/config.toml
LD_LIBRARY_PATH=$bin/fakecuda FAKECUDA_STATE=$dir/card "$bin/gpusliced" --config "$dir/config.toml" 2>"$dir/log" &
daemon=$!
for ((i = 0; i < 100; i++)); do
	[ ! -S "$dir/run/gpuslice.sock" ] || break
	sleep 0.05
done

mkdir -p "$dir/bundle/rootfs"/{bin,proc,dev,etc}
cp "$busybox" "$dir/bundle/rootfs/bin/busybox"
ln -s busybox "$dir/bundle/rootfs/bin/true"
(cd "$dir/bundle" && "$runc" spec)
sed -i 's/"terminal": true/"terminal": false/; s/"sh"$/"true"/; s/^{$/{ "annotations": {"gpuslice.vram": "4G"},/' "$dir/bundle/config.json"
cp "$dir/bundle/config.json" "$dir/pristine.json"

# took WAY STEP COMMAND…: record its duration in microseconds.
took() {
	local way=$1 step=$2 begin=${EPOCHREALTIME/./}
	shift 2
	"$@" </dev/null >>"$dir/out" 2>&1 || {
		cat "$dir/out" "$dir/log"
		exit 1
	}
	echo "$way $step $((${EPOCHREALTIME/./} - begin))" >>"$dir/times"
}

life() {
	local way=$1 program=$2 id=bench-$$-$1 state
	cp "$dir/pristine.json" "$dir/bundle/config.json"
	took "$way" create "$program" --root "$dir/root" create --bundle "$dir/bundle" "$id"
	took "$way" start "$program" --root "$dir/root" start "$id"
	state=$("$runc" --root "$dir/root" state "$id")
	while [[ $state != *'"status": "stopped"'* ]]; do
		sleep 0.005
		state=$("$runc" --root "$dir/root" state "$id")
	done
	took "$way" delete "$program" --root "$dir/root" delete "$id"
}

life warm-runc "$runc"
life warm-slice "$bin/gpuslice-runtime"
for ((i = 0; i < rounds; i++)); do
	if ((i % 2)); then
		life runc "$runc"
		life slice "$bin/gpuslice-runtime"
	else
		life slice "$bin/gpuslice-runtime"
		life runc "$runc"
	fi
	took runc nothing "$runc" --version
	took slice nothing "$bin/gpuslice-runtime" --version
done

version=$("$runc" --version)
echo "container life, $rounds rounds in turns, ${version%%$'\n'*}, driver simulated, milliseconds (medians)"
sort -k1,1 -k2,2 -k3,3n "$dir/times" | awk '
	/^warm/ { next }
	{ key = $1 " " $2; value[key, ++n[key]] = $3 }
	function median(key) { return (value[key, int((n[key] + 1) / 2)] + value[key, int(n[key] / 2) + 1]) / 2000 }
	function row(name, a, b) { printf "%-34s %8.1f %8.1f %+8.1f %7.2f\n", name, a, b, b - a, b / a }
	END {
		printf "%-34s %8s %8s %8s %7s\n", "", "runc", "gpuslice", "more", "ratio"
		row("create", median("runc create"), median("slice create"))
		row("start", median("runc start"), median("slice start"))
		row("create + start", median("runc create") + median("runc start"), median("slice create") + median("slice start"))
		row("delete", median("runc delete"), median("slice delete"))
		row("the wrapper alone (--version)", median("runc nothing"), median("slice nothing"))
	}'
