#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# build.sh [PART…]: make bin/release/, or OUT: packages-ARCH, image-gpuslice-dra-ARCH and image-gpuslice-ARCH for amd64 and arm64, chart, wheel and sbom, with
# RELEASE-NOTES.md and SHA256SUMS. Without PART it makes all that can be made here, and lists the rest; with PART, it fails if one cannot be made.
# VERSION, DATE and GO are the Makefile's, and so is what it has compiled for this machine. BASES is a directory with the base of the image gpuslice,
# amd64.tar and arm64.tar: OCI archives, or archives of a root directory. With OUT the working tree may have changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${VERSION:?}" "${DATE:?}" "${GO:?}"
out=${OUT:-bin/release}
own=$("$GO" env GOHOSTARCH)
[ -n "${SOURCE_DATE_EPOCH:-}" ] || SOURCE_DATE_EPOCH=$(date -u -d "$DATE" +%s)
export SOURCE_DATE_EPOCH
asked=("$@") # none: all
archs=(amd64 arm64)
parts=()
for arch in "${archs[@]}"; do parts+=("packages-$arch" "image-gpuslice-dra-$arch" "image-gpuslice-$arch"); done
parts+=(chart wheel sbom)

fail() {
	echo "release: $*" >&2
	exit 1
}
for part in ${asked[@]+"${asked[@]}"}; do
	[[ " ${parts[*]} " == *" $part "* ]] || fail "there is no part $part: the parts are ${parts[*]}"
done
if [ -z "${OUT:-}" ] && git rev-parse --git-dir >/dev/null 2>&1; then
	changes=$(git status --porcelain)
	[ -z "$changes" ] || fail "the working tree has changes, which no tag would have: commit or stash them"
fi
command -v python3 >/dev/null || fail "python3 is not installed: sudo apt-get install python3"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "${OUT:-}" ] || rm -rf bin/release
mkdir -p "$out"
there=$(ls -A "$out")
[ -z "$there" ] || fail "$out has files, which would be among those of the release: name an empty directory"

# programs ARCH: the directory with what make has compiled for it.
programs() {
	if [ "$1" = "$own" ]; then echo bin; else echo ".cache/packages/$1"; fi
}
# missing WHY: the part cannot be made here.
missing() {
	[ ${#asked[@]} = 0 ] || fail "$part cannot be made here: $1"
	echo "- $part: $1" >>"$work/missing"
}
shipped=() # ARCH=FILE
ship() { # ARCH NAME…: note what the release has of the compiled files
	local arch=$1 bin name
	bin=$(programs "$1")
	shift
	for name; do shipped+=("$arch=$bin/$name"); done
}
# compile ARCH NAME…: for another machine. Fails, after `missing`, without a compiler for it.
compile() {
	local status=0 said
	[ "$1" != "$own" ] || return 0
	configs/packages/compile.sh "$@" >"$work/said" 2>&1 || status=$?
	case $status in
	0) ;;
	3)
		said=$(<"$work/said")
		missing "${said#packages: }"
		return 3
		;;
	*)
		cat "$work/said" >&2
		exit "$status"
		;;
	esac
}
packages() { # ARCH
	local names=(gpuslice{,d,-leased,-broker,-hook,-runtime} containerd-shim-gpuslice-v1 libgpuslice.so) bin
	compile "$1" "${names[@]}" || return 0
	ship "$1" "${names[@]}"
	bin=$(programs "$1")
	OUT=$out BIN=$bin configs/packages/build.sh "$1" >"$work/said" || { cat "$work/said" >&2 && return 1; }
}
image() { # NAME ARCH
	local names=(gpuslice-dra) base=() bin
	if [ "$1" = gpuslice ]; then
		names=(gpuslice{,d,-hook} libgpuslice.so) base=("${BASES:-}/$2.tar")
		if [ ! -e "${base[0]}" ]; then
			missing "its base is not here: mmdebstrap --variant=essential --skip=output/dev --architectures=$2 bookworm DIR/$2.tar, then BASES=DIR"
			return
		fi
	fi
	compile "$2" "${names[@]}" || return 0
	ship "$2" "${names[@]}"
	bin=$(programs "$2")
	configs/release/image.py "$1" "$2" "$VERSION" "$bin" "$out/$1-image_${VERSION}_$2.oci.tar" ${base[@]+"${base[@]}"}
}
chart() {
	cp -r kubernetes/deploy/chart "$work/gpuslice"
	sed -i "s/^version: .*/version: $VERSION\nappVersion: \"$VERSION\"/" "$work/gpuslice/Chart.yaml"
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" -cf - gpuslice |
		gzip -9n >"$out/gpuslice-chart-$VERSION.tgz"
}
wheel() { python3 -B lease/python/make_wheel.py "$out" "$VERSION" >/dev/null; }
sbom() {
	[ ${#shipped[@]} != 0 ] || fail "sbom needs packages or images in the same release"
	configs/release/sbom.py "$GO" "$VERSION" "${shipped[@]}" >"$out/gpuslice_$VERSION.cdx.json"
}

for part in "${parts[@]}"; do
	[ ${#asked[@]} = 0 ] || [[ " ${asked[*]} " == *" $part "* ]] || continue
	name=${part%-*} arch=${part##*-}
	case $part in
	packages-*) packages "$arch" ;;
	image-*) image "${name#image-}" "$arch" ;;
	*) $part ;;
	esac
done

# The section of this version, or of what is not released for a version that no tag has. Its links are to the files of that commit.
case $VERSION in
*+g*) section=Unreleased ref=${VERSION##*+g} ;;
*-dev) section=Unreleased ref=main ;;
*) section=$VERSION ref=v$VERSION ;;
esac
awk -v section="$section" '/^## / { inside = $2 == section || $2 == "[" section "]" } inside' CHANGELOG.md |
	sed -E "s|\]\(([^):]+)\)|](https://github.com/gpuslice/gpuslice/blob/$ref/\1)|g" >"$out/RELEASE-NOTES.md"
[ -s "$out/RELEASE-NOTES.md" ] || fail "CHANGELOG.md has no section \"## $section\""
if [ -s "$work/missing" ]; then
	{ printf '\n## Not among these files\n\n' && cat "$work/missing"; } >>"$out/RELEASE-NOTES.md"
	echo "release: not made here:" && cat "$work/missing"
fi
(cd "$out" && LC_ALL=C && sha256sum -- * >"$work/sums")
mv "$work/sums" "$out/SHA256SUMS"
chmod 644 "$out"/*
(cd "$out" && ls -l)
