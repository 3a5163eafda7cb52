#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that only a real GPU can show, in one run: conformance programs, check.py, the bench. As root, after
# `make build`; needs runc (RUNC=path), python3 with PyTorch, nvcc and gcc; no Go, no network. OUT is where
# logs go. Prints short tables.
set -u
cd "$(dirname "$0")/../.." || exit
OUT=${OUT:-$(mktemp -d)}
failed=0

echo "== conformance"
mkdir -p bin/conformance
test/conformance/run.sh bin/conformance >"$OUT/conformance.txt" 2>&1 || failed=1
grep -v '^#' test/conformance/expected/h100.txt | diff - "$OUT/conformance.txt" >"$OUT/conformance.diff"
echo "$(grep -c '^>' "$OUT/conformance.diff") of $(grep -c . "$OUT/conformance.txt") lines differ from what was recorded on an H100"

echo "== promises"
RUNC=${RUNC:-$PWD/bin/runc} python3 test/gpu/check.py --out "$OUT" || failed=1

echo "== bench"
BENCH_JSON=$OUT/bench.json test/bench/bench.sh 2>&1 | tee "$OUT/bench.txt" || failed=1
exit $failed
