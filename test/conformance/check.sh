#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh: hold the simulated driver to expected/simulated.txt, line by line, on a machine of its own.
# check.sh --record writes that file anew; look at its diff before you commit it.
set -euo pipefail
cd "$(dirname "$0")/../.."
expected=test/conformance/expected/simulated.txt

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for variable in $(compgen -e FAKECUDA_ || true) CUDA_VISIBLE_DEVICES LD_PRELOAD; do
	unset "$variable"
done
FAKECUDA_STATE=$dir/state LD_LIBRARY_PATH=bin/fakecuda \
	test/conformance/run.sh bin/conformance >"$dir/seen"

if [ "${1:-}" = --record ]; then
	cp "$dir/seen" "$expected"
elif diff -u "$expected" "$dir/seen"; then
	echo "1 passed, 0 failed, 0 skipped"
else
	echo "0 passed, 1 failed, 0 skipped"
	exit 1
fi
