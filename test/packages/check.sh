#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The packages on a Debian of their own: installed, upgraded and removed while slices are in use, purged. A .deb by dpkg, a .rpm by Debian's
# rpm. Its database lacks Debian's packages, so the .rpm's requirements are checked but not resolved.
#
# Each runs in its own mount and pid namespaces on a temporary root filesystem, over one that debootstrap made once in
# ${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/packages. Only systemd is not real: see inside.sh.
# shellcheck disable=SC2317,SC2329 # functions are called by check, or in another namespace
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD
. test/debian.sh
go=${GO:-$(test/go.sh)}
suite=bookworm packages=rpm,runc,procps stamp=1
base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/packages/$suite-$stamp
[ "$EUID" = 0 ] || {
	echo "packages: root is needed, to install" >&2
	exit 1
}
test/deps.sh --need packages debootstrap cc readelf dpkg-deb rpm aarch64-linux-gnu-gcc qemu-aarch64-static

work=$(mktemp -d /tmp/gpuslice-packages.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# --- a Debian ------------------------------------------------------------------------------------

debian_made "$base" "$suite" "$packages"

# --- two versions ----------------------------------------------------------------------------------

# The older version has a different library: without debug information.
arch=$("$go" env GOHOSTARCH)
version=$(test/version.sh)
mkdir "$work/older" "$work/test"
ln -s "$here"/bin/{gpuslice,gpusliced,gpuslice-hook,gpuslice-runtime,gpuslice-broker,gpuslice-leased,containerd-shim-gpuslice-v1} "$work/older/"
strip -g -o "$work/older/libgpuslice.so" bin/libgpuslice.so
VERSION=0.0.1 BIN=$work/older DATE=2026-01-01 GO=$go OUT=$work/test configs/packages/build.sh "$arch" >/dev/null
tar -C "$here" -cf "$work/test/$arch.tar" VERSION # a base with one file
release=("packages-amd64" "packages-arm64" "image-gpuslice-"{dra-,}"$arch" chart wheel sbom)
make --no-print-directory -s release GO="$go" VERSION="$version" DATE=2026-01-01 OUT="$work/release" BASES="$work/test" RELEASE="${release[*]}" >/dev/null
ln "$work/release/gpuslice_${version}_$arch".{deb,rpm} "$work/test/"
cc -Iinterceptor -Itest/interceptor/programs -o "$work/test/asker" test/e2e/programs/asker.c bin/fakecuda/libcuda.so.1
cp -r bin/fakecuda test/packages/inside.sh test/packages/systemctl "$work/test/"

# --- what is in them ---------------------------------------------------------------------------------

passed=0 failed=0
check() { # NAME COMMAND…
	local name=$1
	shift
	if "$@" >"$work/said" 2>&1; then
		echo "ok   $name"
		passed=$((passed + 1))
	else
		echo "FAIL $name"
		cat "$work/said"
		failed=$((failed + 1))
	fi
}
deb=$work/release/gpuslice_${version}_$arch.deb rpm=$work/release/gpuslice_${version}_$arch.rpm

# The functions are chains of "&&", since `check` uses their result and -e has no effect in them.

# For arm64: compiled, and its programs run.
for_arm64() {
	local file said debian redhat
	mkdir -p "$work/arm64" &&
		debian=$(dpkg-deb -f "$work"/release/*_arm64.deb Architecture) && redhat=$(rpm -qp --qf '%{ARCH}' "$work"/release/*_arm64.rpm) &&
		[ "$debian $redhat" = "arm64 aarch64" ] &&
		dpkg-deb -x "$work"/release/*_arm64.deb "$work/arm64/root" || return 1
	for file in "$work"/arm64/root/usr/bin/* "$work"/arm64/root/usr/lib/gpuslice/packaged/libgpuslice.so; do
		readelf -h "$file" | grep -q 'Machine: *AArch64' || return 1
	done
	said=$(qemu-aarch64-static -L /usr/aarch64-linux-gnu "$work/arm64/root/usr/bin/gpusliced" --version) && [ "$said" = "gpusliced $version" ]
}
same_files() { # without directories: a .deb has all of them and a .rpm only its own
	dpkg-deb --fsys-tarfile "$deb" | tar -tf - | grep -v '/$' | sed 's/^\.//' | sort >"$work/deb.files" &&
		rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$rpm" | grep -v ^d | cut -d' ' -f2 | sort >"$work/rpm.files" &&
		diff "$work/deb.files" "$work/rpm.files"
}
dependencies() {
	local needs said
	# shellcheck disable=SC2016 # the format is dpkg's
	needs=$(dpkg-deb -f "$deb" Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p') &&
		[ -n "$needs" ] && rpm -qp --requires "$rpm" | grep -xF "libc.so.6(GLIBC_$needs)(64bit)" &&
		said=$(dpkg-deb --show --showformat='${Architecture} ${Version}' "$deb") && [ "$said" = "$arch ${version/-/\~}" ]
}
config_is_config() {
	local files
	files=$(dpkg-deb --ctrl-tarfile "$deb" | tar -xOf - ./conffiles) && [ "$files" = /etc/gpuslice/config.toml ] &&
		rpm -qp --qf '[%{FILENAMES} %{FILEFLAGS:fflags}\n]' "$rpm" | grep -x '/etc/gpuslice/config.toml cn'
}
no_other_prefix() {
	dpkg-deb -x "$deb" "$work/files" && gunzip -r "$work/files/usr/share/man" && ! grep -rIn /usr/local "$work/files" --exclude=copyright
}
reproducible() {
	VERSION=$version BIN=bin DATE=2026-01-01 GO=$go OUT=$work/again configs/packages/build.sh "$arch" &&
		cmp "$deb" "$work/again/${deb##*/}" && cmp "$rpm" "$work/again/${rpm##*/}"
}
complete() {
	(cd "$work/release" && sha256sum --check --quiet SHA256SUMS) && grep -q '^### ' "$work/release/RELEASE-NOTES.md" &&
		! grep '](docs/' "$work/release/RELEASE-NOTES.md" &&
		tar -xOf "$work/release/gpuslice-chart-$version.tgz" gpuslice/Chart.yaml | grep -x "version: $version"
}
materials() { # each program with all of its modules, and a licence for each
	local program said
	for program in gpuslice-hook gpuslice-dra; do
		"$go" version -m "bin/$program" | awk '$1 == "dep" && $2 !~ "^github.com/gpuslice/" { print "pkg:golang/" $2 "@" $3 }' >"$work/modules" && [ -s "$work/modules" ] || return 1
		while IFS= read -r module; do grep -qF "\"$module\"" "$work/release/gpuslice_$version.cdx.json" || return 1; done <"$work/modules"
	done
	said=$(SOURCE_DATE_EPOCH=0 configs/release/sbom.py "$go" "$version" "$arch="bin/{gpusliced,gpuslice-dra,gpuslice-broker} 2>&1 >/dev/null) && [ -z "$said" ]
}
image() { # NAME FILE PROGRAM: its largest layer has the program
	mkdir -p "$work/$1" && tar -xf "$work/release/$1-image_${version}_$arch.oci.tar" -C "$work/$1" &&
		(cd "$work/$1/blobs/sha256" && for blob in *; do echo "$blob  $blob"; done | sha256sum --check --quiet) &&
		layer=$(find "$work/$1/blobs" -size +1M) && tar -xzOf "$layer" "$2" | cmp - "$3"
}
check "the release is complete" complete
check "its bill of materials names all modules, with licences" materials
check "its image has the driver for Kubernetes" image gpuslice-dra gpuslice-dra bin/gpuslice-dra
check "its other image has gpusliced" image gpuslice usr/bin/gpusliced bin/gpusliced
check "both have the same files" same_files
check "what they depend on" dependencies
check "the configuration is a configuration file" config_is_config
check "no file names another prefix" no_other_prefix
check "made again they are the same, byte for byte" reproducible
[ "$arch" = arm64 ] || check "there are packages for arm64, and the daemon runs there" for_arm64

# --- what they do ------------------------------------------------------------------------------------

for kind in deb rpm; do
	echo "== $kind"
	debian_run "$base" "$work" "$kind" "$arch" "${work##*.}" "$version"
	passed=$((passed + p)) failed=$((failed + f))
done
left() {
	local cgroups
	cgroups=$(find /sys/fs/cgroup -name "gpuslice-packages-${work##*.}" 2>/dev/null || true) # it fails on cgroups that vanish during the search
	! grep -F "$work" /proc/self/mountinfo && [ -z "$cgroups" ]
}
check "no mount and no cgroup is left" left
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
