#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh [SCALE]: what the interceptor adds to calls of the CUDA driver, on the driver that is here. Each call is
# made both ways in one process; the control, outside a slice, shows how far a ratio of 1.00 is to be trusted.
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/driver.sh
scale=${1:-100}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if [ "$driver" = simulated ]; then
	export LD_LIBRARY_PATH=$driver_dir FAKECUDA_STATE=$dir/state
	echo "Driver: simulated. Its calls take next to no time, so the ratios mean little; the differences are ours."
else
	echo "Driver: real, $(sed -n '1s/.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version)"
fi

table() {
	awk -F'\t' -v title="$1" 'BEGIN { printf "%-46s %12s %12s %7s\n", title, "driver ns", "program ns", "ratio" }
		{ printf "%-46s %12.0f %12.0f %7.3f\n", $1, $2, $3, $4 }'
}
bin/bench/cost "$scale" | table "control, without gpuslice"
echo
bin/gpuslice run --embedded --quiet --vram 16G -- bin/bench/cost "$scale" | table "with gpuslice"
echo
echo "First call and context, ms: without gpuslice, then with"
for _ in 1 2 3; do
	bin/bench/cost start | awk -F'\t' '{ printf "%10.2f", $2 / 1e6 }'
	bin/gpuslice run --embedded --quiet --vram 16G -- bin/bench/cost start | awk -F'\t' '{ printf "%10.2f\n", $2 / 1e6 }'
done
