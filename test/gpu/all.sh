#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that only a real GPU can show, in one run: conformance programs, the other programs here, the bench. As root,
# after `make card-programs`; needs runc (RUNC=path), python3 with the frameworks that frameworks.py names, nvcc and gcc; no Go, no
# network. OUT is where logs go. Prints short tables.
set -u
cd "$(dirname "$0")/../.." || exit
OUT=${OUT:-$(mktemp -d)}
STORM=${STORM:-60} # seconds
failed=0

echo "== conformance"
mkdir -p bin/conformance
test/conformance/run.sh bin/conformance >"$OUT/conformance.txt" 2>&1 || failed=1
grep -v '^#' test/conformance/expected/h100.txt | diff - "$OUT/conformance.txt" >"$OUT/conformance.diff"
echo "$(grep -c '^>' "$OUT/conformance.diff") of $(grep -c . "$OUT/conformance.txt") lines differ from what was recorded on an H100"

echo "== test/interceptor's programs in a slice, on this card"
mkdir -p bin/gpu-test
program() {
	name=$1 vram=$2
	shift 2
	gcc -std=gnu11 -O1 -g -Iinterceptor -o "bin/gpu-test/$name" "test/interceptor/programs/$name"*.c interceptor/ledger.c -lcuda -l:libnvidia-ml.so.1 -ldl -lpthread || return 1
	if timeout $((STORM + 150)) bin/gpuslice run --embedded --quiet --vram "$vram" -- "bin/gpu-test/$name" "$@" >"$OUT/$name.txt" 2>&1; then
		echo "PASS  $name $*: $(tail -n 1 "$OUT/$name.txt")"
	else
		echo "FAIL  $name $*: $(head -n 5 "$OUT/$name.txt")"
		failed=1
	fi
}
program routes 4G
program accounting 4G
program threads 8G 8 1500
program fork 4G
program nvml 4G agree
program race 8G 20 8 2 8589934592
program kills 4G 40
program checkpoint 4G
program primary 8G 4 20
program codethreads 8G 8 200
program signals 4G 10
program environ 4G 5
program allocator 8G
program storm 16G "$STORM" 16 3

echo "== ways around the loader"
# loaders.c is not linked with libcuda, and its plugins lie beside it.
part() { # OUTPUT SOURCE FLAG…
	output=bin/gpu-test/loaders/$1 source=test/interceptor/programs/$2
	shift 2
	gcc -std=gnu11 -O1 -g -Iinterceptor -o "$output" "$source" "$@" -ldl
}
mkdir -p bin/gpu-test/loaders
if part loaders loaders.c && part plugin-linked.so plugin.c -shared -fPIC -DLINKED -lcuda &&
	part plugin-opens.so plugin.c -shared -fPIC -DOPENS && part plugin-nested.so plugin.c -shared -fPIC -DNESTS &&
	part plugin-next.so plugin.c -shared -fPIC -DNEXT; then
	for way in by-path copy dlmopen libc-dlsym libc-dlvsym next-dlsym plugin-linked plugin-opens plugin-nested; do
		for order in alone after before; do
			timeout 60 bin/gpuslice run --embedded --quiet --vram 4G -- bin/gpu-test/loaders/loaders "$way" "$order" 4294967296 \
				"$PWD/bin/gpu-test/loaders" 2>&1 || failed=1
		done
	done
else
	failed=1
fi

echo "== promises"
RUNC=${RUNC:-$PWD/bin/runc} python3 test/gpu/check.py --out "$OUT" || failed=1

echo "== memory past the ledger; time and quotas that change"
RUNC=${RUNC:-$PWD/bin/runc} python3 test/gpu/bypass.py --out "$OUT/bypass" || failed=1

echo "== every row of docs/evidence/coverage.md"
RUNC=${RUNC:-$PWD/bin/runc} python3 test/gpu/rows.py --out "$OUT/rows" || failed=1

echo "== why one was refused, and what it needs"
RUNC=${RUNC:-$PWD/bin/runc} test/gpu/explain.py --out "$OUT/explain" || failed=1

echo "== suspended and resumed"
RUNC=${RUNC:-$PWD/bin/runc} test/gpu/suspend.py --size 30 --quota 42 --rounds 1 --out "$OUT/suspend" || failed=1

echo "== elastic slices"
RUNC=${RUNC:-$PWD/bin/runc} test/gpu/elastic.py --checkpoint --out "$OUT/elastic" --size 20 --quota 42 || failed=1
RUNC=${RUNC:-$PWD/bin/runc} test/gpu/elastic.py --out "$OUT/remap" --only swap --size 30 --quota 45 || failed=1
RUNC=${RUNC:-$PWD/bin/runc} test/gpu/elastic.py --out "$OUT/remap" --only hundred || failed=1

echo "== the CUDA runtime, static and shared"
test/gpu/runtime.py || failed=1

echo "== tools inside a slice and around one"
test/gpu/tools.py --out "$OUT/tools" || failed=1

echo "== memory pools"
test/gpu/vmm.py --quick --out "$OUT/vmm" || failed=1

if [ "$(nvidia-smi -L | grep -c '^GPU')" -ge 2 ]; then
	echo "== two GPUs"
	RUNC=${RUNC:-$PWD/bin/runc} test/gpu/two.py --out "$OUT/two" || failed=1
fi

echo "== frameworks"
RUNC=${RUNC:-$PWD/bin/runc} python3 test/gpu/frameworks.py --jobs 4 --out "$OUT/frameworks" --json "$OUT/frameworks.json" ||
	failed=1

echo "== bench"
test/bench/bench.py --out "$OUT/bench" >"$OUT/bench.txt" 2>&1 || failed=1
cat "$OUT/bench.txt"
exit $failed
