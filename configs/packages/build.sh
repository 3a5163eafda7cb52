#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# build.sh ARCH…: make bin/packages/gpuslice_VERSION_ARCH.deb and .rpm, for amd64 and arm64. VERSION, DATE and GO are the
# Makefile's; what it builds for this machine is used, and for another is compiled here. Nothing but nfpm is needed,
# which Go fetches.
#
# With OUT the packages go there, and NFPM is a command to use in the place of nfpm. With BIN, for one ARCH, the programs and the library are taken from there.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${VERSION:?}" "${DATE:?}" "${GO:?}"
. test/versions
read -ra nfpm <<<"${NFPM:-$GO run github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm}"
out=${OUT:-bin/packages}
own=$("$GO" env GOHOSTARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# glibc FILE…: the newest glibc that a program asks for.
glibc() {
	readelf --version-info --wide "$@" 2>/dev/null | grep -o 'GLIBC_2\.[0-9.]*' | sort -Vu | tail -1 | cut -d_ -f2
}

# script NAME: a script that is whole in itself, since the package's files may be gone when it runs.
script() {
	{
		printf '#!/bin/sh\nset -e\ngpuslice_version=%s\n' "'$VERSION'"
		grep -v '^# shellcheck' configs/library.sh
		grep -v '^# shellcheck' configs/packages/common.sh
		cat "configs/packages/$1"
	} >"$work/scripts/$1"
	sh -n "$work/scripts/$1"
}

mkdir -p "$out" "$work/scripts"
for name in postinstall.sh preremove.sh postremove.sh; do
	script "$name"
done
SOURCE_DATE_EPOCH=$(date -u -d "$DATE" +%s)
export SOURCE_DATE_EPOCH

for arch; do
	bin=${BIN:-bin}
	if [ -z "${BIN:-}" ] && [ "$arch" != "$own" ]; then
		configs/packages/compile.sh "$arch" gpuslice{,d,-leased,-broker,-hook,-runtime} containerd-shim-gpuslice-v1 libgpuslice.so
		bin=.cache/packages/$arch
	fi
	stage=$work/$arch
	BIN=$bin DESTDIR=$stage PREFIX=/usr SYSCONFDIR=/etc UNITDIR=/usr/lib/systemd/system VERSION=$VERSION \
		ZSHDIR=/usr/share/zsh/site-functions configs/install.sh install >/dev/null
	# A package manager removes the files of the old version at an upgrade: where it is used, the library is laid down by a script.
	rm -r "$stage"/usr/lib/gpuslice
	install -D -m 0644 "$bin/libgpuslice.so" "$stage/usr/lib/gpuslice/packaged/libgpuslice.so"
	find "$stage/usr/share/man" -type f -exec gzip -9n {} +
	find "$stage" -exec touch --no-dereference -d "@$SOURCE_DATE_EPOCH" {} +
	needs=$(glibc "$stage"/usr/bin/{gpuslice,gpusliced,gpuslice-leased,gpuslice-broker})
	sed -e "s|@ARCH@|$arch|; s|@VERSION@|$VERSION|; s|@DATE@|$DATE|; s|@GLIBC@|$needs|g; s|@STAGE@|$stage|; s|@SCRIPTS@|$work/scripts|" \
		configs/packages/nfpm.yaml >"$work/nfpm.yaml"
	for kind in deb rpm; do
		"${nfpm[@]}" package --config "$work/nfpm.yaml" --packager "$kind" --target "$work/new.$kind" >"$work/said" 2>&1 || {
			cat "$work/said" >&2
			exit 1
		}
		[ -n "${OUT:-}" ] || rm -f "$out"/gpuslice_*_"$arch.$kind" # of an earlier version
		package=$out/gpuslice_${VERSION}_$arch.$kind
		mv -f "$work/new.$kind" "$package"
		echo "  $package"
	done
done
