#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# reproducible.sh [PART…]: build a copy of the tree twice, in directories with names of different lengths, and compare all that was made. The second time Go
# compiles everything anew, since what its cache has was made elsewhere. PART is of a release (configs/release/build.sh), by default those that compile
# nothing more. The last line is "N passed, N failed, 0 skipped", of files.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-$(test/go.sh)}
# Of the commit, which a copy without .git does not know.
version=$(test/version.sh)
own=$("$GO" env GOHOSTARCH)
[ $# -gt 0 ] || set -- "packages-$own" chart wheel sbom
. test/versions
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
one=$copy/a two=$copy/elsewhere/in/another/directory
mkdir -p "$one" "$two"
tar --exclude='./.*' --exclude=./bin -cf "$copy/tree" .
GOBIN=$copy "$GO" install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm"
for dir in "$one" "$two"; do
	tar -xf "$copy/tree" -C "$dir"
	log=$copy/log
	if ! env -u MAKEFLAGS NFPM="$copy/nfpm" make -C "$dir" -s GO="$GO" VERSION="$version" DATE=2000-01-01 RELEASE="$*" release >"$log" 2>&1; then
		cat "$log"
		exit 1
	fi
	export GOCACHE=$copy/cache
done

find "$one/bin" "$two/bin" -type f -printf 'bin/%P\n' | sort -u >"$copy/files"
passed=0 failed=0
while IFS= read -r file; do
	if cmp "$one/$file" "$two/$file"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
done <"$copy/files"
for file in gpuslice gpusliced gpuslice-leased gpuslice-broker gpuslice-hook gpuslice-runtime containerd-shim-gpuslice-v1 libgpuslice.so \
	release/SHA256SUMS; do
	if [ ! -s "$one/bin/$file" ]; then
		echo "reproducible: bin/$file was not made"
		failed=$((failed + 1))
	elif grep -qaF -e "$copy" "$one/bin/$file"; then
		echo "reproducible: bin/$file names the directory that it was made in"
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
