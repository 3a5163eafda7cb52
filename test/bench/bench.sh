#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh [SCALE [ROUNDS]]: what a slice adds to calls of the CUDA driver, on the driver that is here.
#
# Each call is made both ways in one process, by the driver's own function and by what a program gets, in
# alternating batches; the control, outside a slice, shows how far a ratio of 1.00 is to be trusted there. What cannot
# be made both ways in one process (the start; the runtime library) is measured by processes in turns. Absolute
# times drift between runs and machines; the ratios are what counts. BENCH_JSON=FILE writes them as JSON, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/driver.sh
scale=${1:-100}
rounds=${2:-5}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
slice=(bin/gpuslice run --embedded --quiet --vram 16G --)

if [ "$driver" = simulated ]; then
	export LD_LIBRARY_PATH=$driver_dir FAKECUDA_STATE=$dir/state
	card='simulated driver: its calls take next to no time, so the ratios mean little; the differences are ours'
else
	card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
fi
echo "card: $card"
echo "command: test/bench/bench.sh $scale $rounds"

for ((i = 1; i <= rounds; i++)); do
	[ ! -t 2 ] || printf 'round %d of %d\r' "$i" "$rounds" >&2
	bin/bench/cost "$scale" >"$dir/control.$i"
	"${slice[@]}" bin/bench/cost "$scale" >"$dir/slice.$i"
	for ((j = 0; j < 8; j++)); do
		for what in start "runtime $scale"; do
			# Which comes first changes, so that neither always finds the machine warm.
			if ((j % 2)); then
				# shellcheck disable=SC2086 # words
				bin/bench/cost $what >>"$dir/pairs.native"
			fi
			# shellcheck disable=SC2086
			"${slice[@]}" bin/bench/cost $what >>"$dir/pairs.slice"
			if ! ((j % 2)); then
				# shellcheck disable=SC2086
				bin/bench/cost $what >>"$dir/pairs.native"
			fi
		done
	done
done

awk -F '\t' -v rounds="$rounds" -v dir="$dir" -v card="$card" -v json="${BENCH_JSON:-/dev/null}" '
function median(values, n,   i, j, t) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
			t = values[j]; values[j] = values[j - 1]; values[j - 1] = t
		}
	return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}
function row(name, native, sliced, ratio, low, high, control) {
	printf "%-46s %12.0f %12.0f %7.3f  %.3f-%.3f %8s\n", name, native, sliced, ratio, low, high, control
	printf("%s\n {\"call\":\"%s\",\"native_ns\":%.1f,\"slice_ns\":%.1f,\"ratio\":%.4f,\"lowest\":%.4f,\"highest\":%.4f,\"control\":\"%s\"}", rows++ ? "," : "", name, native, sliced, ratio, low, high, control) > json
}
# The lines of a file: seen[kind, name, k], k from 1 to many[kind, name].
function take(kind, file,   k) {
	while ((getline < file) > 0) {
		k = ++many[kind, $1]
		native[kind, $1, k] = $2; sliced[kind, $1, k] = $3; ratio[kind, $1, k] = $4
		if (!((kind, $1) in known)) { known[kind, $1] = 1; names[kind, ++count[kind]] = $1 }
	}
	close(file)
}
BEGIN {
	for (i = 1; i <= rounds; i++) { take("slice", dir "/slice." i); take("control", dir "/control." i) }
	take("start native", dir "/pairs.native"); take("start slice", dir "/pairs.slice")
	printf "%-46s %12s %12s %7s  %11s %8s\n", "call", "driver ns", "in slice ns", "ratio", "of rounds", "control"
	printf("{\"card\":\"%s\",\"rounds\":%d,\"calls\":[", card, rounds) > json
	for (c = 1; c <= count["slice"]; c++) {
		name = names["slice", c]
		for (k = 1; k <= rounds; k++) {
			a[k] = native["slice", name, k]; b[k] = sliced["slice", name, k]
			r[k] = ratio["slice", name, k]; q[k] = ratio["control", name, k]
		}
		middle = median(r, rounds)
		row(name, median(a, rounds), median(b, rounds), middle, r[1], r[rounds], sprintf("%.3f", median(q, rounds)))
	}
	for (c = 1; c <= count["start slice"]; c++) {
		name = names["start slice", c]
		n = many["start slice", name]
		for (k = 1; k <= n; k++) {
			a[k] = native["start native", name, k]; b[k] = native["start slice", name, k]
			r[k] = b[k] / a[k]
		}
		middle = median(r, n)
		row(name, median(a, n), median(b, n), middle, r[1], r[n], "-")
	}
	print "\n]}" > json
}'

echo
if [ "$(id -u)" = 0 ] && command -v "${RUNC:-runc}" >/dev/null; then
	test/bench/start.sh
else
	echo "container start: not measured, it needs root and runc"
fi
