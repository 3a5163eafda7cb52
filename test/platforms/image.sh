#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# image.sh NAME: make the image NAME in .cache/platforms/NAME, and print that directory. Its root/ is a root filesystem with a libc, busybox
# and small programs. programs/ of "oldest" has the rest of bin/, demo/cuda_hog and fakecuda/, built for that libc. Downloads are kept until
# `make clean`; builds follow their sources.
#
# 	oldest   glibc 2.23 of Ubuntu 16.04, the oldest in a distribution's archive, for x86-64 and i386. Frozen there, and
# 	         pinned by checksum.
# 	bookworm glibc 2.36 of Debian 12, for both, by apt from this machine's mirror. Its $PLATFORM is "haswell" on such a CPU.
# 	newest   that of the current Debian sid, likewise
# 	musl     Debian's musl, from this machine's packages
set -euo pipefail
cd "$(dirname "$0")/../.."
name=${1:-}
dir=$PWD/.cache/platforms/$name
root=$dir/root
ubuntu=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

die() {
	echo "image: $*" >&2
	exit 1
}
failed() {
	cat "$dir/log" >&2
	die "cannot $*"
}
case $name in
oldest | bookworm | newest | musl) ;;
*) die "usage: $0 oldest|bookworm|newest|musl" ;;
esac
mkdir -p "$dir"
exec 9>"$dir.lock"
flock 9

# pinned TO PATH SUM: a package of Ubuntu's archive, unpacked into the directory TO.
pinned() {
	local file=$dir/debs/${2##*/}
	mkdir -p "$dir/debs" "$1"
	/usr/lib/apt/apt-helper download-file "$ubuntu/pool/main/$2" "$file" "SHA256:$3" >"$dir/log" 2>&1 ||
		failed "fetch $2"
	dpkg -x "$file" "$1"
}

# hello ROOT: one program, for both. It needs glibc 2.7, so it runs on all.
hello() {
	local arch
	pinned "$dir/hello64" h/hello/hello_2.10-1_amd64.deb 5896f71b0fb1b348104fadb846cae0bd30db500a5e671531e846f54fc330b687
	pinned "$dir/hello32" h/hello/hello_2.10-1_i386.deb e1ade79173623b3872c48495d52270ae281524b52e3a8b4da35d7d9706183fe4
	for arch in 64 32; do
		cp "$dir/hello$arch/usr/bin/hello" "$root/bin/hello$arch"
	done
}

fetch_oldest() {
	local libc=g/glibc/libc6_2.23-0ubuntu3
	pinned "$root" ${libc}_amd64.deb 68d69a0fb2dae7578a2a7054bc0cd5f0994d523f60d540bc6708ff3f2fb33e18
	pinned "$root" ${libc}_i386.deb 38200f93d7ed961421eada598e8e96a6428cc1a22c4b7a7a2242a9b240c7c1a0
	pinned "$dir/sys" ${libc}_amd64.deb 68d69a0fb2dae7578a2a7054bc0cd5f0994d523f60d540bc6708ff3f2fb33e18
	pinned "$dir/sys" g/glibc/libc6-dev_2.23-0ubuntu3_amd64.deb 16e68695491fa070e06112fa5647732bb83164c2c3c5732774c1472fcdd79ce2
	pinned "$dir/sys" l/linux/linux-libc-dev_4.4.0-21.37_amd64.deb b79bb61ae018a452185253073301f3a8a8945aca329a29938068e05560089347
	# libdl.so and similar links name the libraries as if the system were installed at /.
	find "$dir/sys" -type l -lname '/*' -printf '%l\t%p\n' | while IFS=$'\t' read -r target link; do
		ln -sfrn "$dir/sys$target" "$link"
	done
	hello
}

fetch_bookworm() { debian bookworm; }
fetch_newest() { debian sid; }

# debian SUITE
debian() {
	local mirror apt=$dir/apt link package
	# shellcheck disable=SC2016 # the format is apt's
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$') ||
		die "apt-get knows no mirror of Debian"
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$apt/sources.list"
	cat >"$apt/apt.conf" <<-END
		Dir::Etc::SourceList "$apt/sources.list";
		Dir::Etc::SourceParts "/dev/null";
		Dir::State "$apt/state";
		Dir::State::status "/dev/null";
		Dir::Cache "$apt/cache";
		APT::Architectures { "amd64"; "i386"; };
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
	END
	(cd "$apt" && APT_CONFIG=$apt/apt.conf apt-get -qq update && APT_CONFIG=$apt/apt.conf apt-get -qq download libc6:amd64 libc6:i386) \
		>"$dir/log" 2>&1 || failed "fetch the glibc of $1"
	mkdir -p "$root"
	for package in "$apt"/libc6_*.deb; do
		dpkg -x "$package" "$root"
	done
	rm -rf "$apt"
	# /usr-merged: the links are in another package.
	for link in lib lib64; do
		[ -e "$root/$link" ] || ln -s "usr/$link" "$root/$link"
	done
	hello
}

fetch_musl() {
	local machine
	machine=$(uname -m)
	mkdir -p "$root/lib"
	cp "/lib/ld-musl-$machine.so.1" "$root/lib/"
}

if [ ! -e "$dir/fetched" ]; then
	rm -rf "${dir:?}"
	mkdir -p "$root/bin" "$root/usr"
	"fetch_$name"
	busybox=$(command -v busybox) || die "busybox is not installed (test/deps.sh --ci)"
	cp "$busybox" "$root/bin/busybox"
	for link in sh sleep true; do
		ln -s busybox "$root/bin/$link"
	done
	rm -rf "${root:?}"/{usr/share,etc,var} "$dir/debs" "$dir"/hello??
	touch "$dir/fetched"
fi

case $name in
oldest)
	sys=$dir/sys programs=$dir/programs
	cc=(gcc "--sysroot=$sys" "-B$sys/usr/lib/x86_64-linux-gnu" "-L$sys/lib/x86_64-linux-gnu" "-L$sys/usr/lib/x86_64-linux-gnu")
	mkdir -p "$programs/demo"
	# Without the flags of a surrounding `make test`.
	env -u MAKEFLAGS -u MFLAGS make --no-print-directory CC="${cc[*]}" FAKECUDA_BIN="$programs/fakecuda" FAKECUDA_OBJ="$dir/obj" \
		"$programs/fakecuda/libcuda.so.1" "$programs/fakecuda/libnvidia-ml.so.1" >"$dir/log" 2>&1 || failed "build the simulated driver"
	"${cc[@]}" -std=c11 -O2 -Iinterceptor -o "$programs/demo/cuda_hog" test/demo/cuda_hog.c -ldl
	;;
musl)
	cc=(musl-gcc -std=gnu11 -O1 -Wall -Wextra -Werror test/platforms/musl.c)
	"${cc[@]}" -DDYNAMIC -rdynamic -o "$root/bin/dynamic"
	"${cc[@]}" -static -o "$root/bin/static"
	;;
esac
echo "$dir"
