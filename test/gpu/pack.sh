#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# pack.sh [FILE]: write what all.sh needs on a machine with nothing but its drivers into FILE (bin/card.tar.xz), 60 MiB at most: the
# programs of bin/ without their symbols, and a runc that needs no library. Build them first: make card-programs
# kubernetes-card.
set -euo pipefail
cd "$(dirname "$0")/../.."
file=${1:-bin/card.tar.xz}
dir=$(mktemp -d)
chmod 755 "$dir" # bin/ gets this mode
trap 'rm -rf "$dir"' EXIT

names=(gpuslice gpusliced gpuslice-leased gpuslice-broker gpuslice-hook gpuslice-runtime containerd-shim-gpuslice-v1 libgpuslice.so session vmm
	gpuslice-dra kubelet demo/cuda_hog bench/cost lease/examples session-tests/lease.test vmm-tests/vmm.test vmm-tests/cuda.test)
while read -r name; do
	names+=("$name")
done < <(cd bin && find conformance -maxdepth 1 -type f)
for name in "${names[@]}"; do
	[ -f "bin/$name" ] || {
		echo "pack.sh: no bin/$name: make card-programs kubernetes-card" >&2
		exit 1
	}
	install -D "bin/$name" "$dir/$name"
done
install "$(test/engines/build.sh runc-static | tail -n 1)/runc-static/runc" "$dir/runc"
find "$dir" -type f -exec strip --strip-unneeded {} +
XZ_OPT=${XZ_OPT:--4 -T0} tar -C "$dir" -cJf "$file.new" .
mv "$file.new" "$file"
bytes=$(stat -c %s "$file")
echo "$file: $((bytes >> 20)) MiB, $(tar -tf "$file" | grep -vc '/$') files"
if ((bytes > 60 << 20)); then
	echo "pack.sh: $file is larger than 60 MiB" >&2
	exit 1
fi
