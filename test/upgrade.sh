#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Replace a daemon of the version before, which kept all its state in one file, by this one while containers run. It is made of the
# repository's history. As root, after `make build`; needs runc. The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
# The last commit whose state is of schema 1.
former=9e1e99a
go=${GO:-$(test/go.sh)}
if ! git cat-file -e "$former^{commit}" 2>/dev/null; then
	echo "upgrade: this copy of the repository does not reach back to $former"
	echo "0 passed, 0 failed, 1 skipped"
	exit
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/former"
git archive "$former" | tar -xf - -C "$dir/former"
(cd "$dir/former" && "$go" build -trimpath -buildvcs=false -o "$dir/gpusliced" ./cmd/gpusliced)
if GPUSLICE_FORMER=$dir/gpusliced "$go" test -count=1 -buildvcs=false -tags upgrade -run TestADaemonThatReplaces ./test/e2e; then
	echo "1 passed, 0 failed, 0 skipped"
else
	echo "0 passed, 1 failed, 0 skipped"
	exit 1
fi
