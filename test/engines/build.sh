#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# build.sh [--ready] [NAME…]: build the real engines for the suite into a cache, unless they are there, and print its directory last.
# The machine itself is unchanged. Engines that Debian 12 lacks are built from Go modules. With --ready nothing is built: it fails and
# names the missing engines.
#
# The cache is $GPUSLICE_ENGINES, else gpuslice/engines in the user's cache directory. Each engine has a directory there, which gets its
# name when it is complete, and is rebuilt when its pin or its build changes. VERSIONS has a line "NAME VERSION" for each, as the program
# prints it.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
go=${GO:-$(test/go.sh)}
export GOGC=400 # a fifth less CPU time for the compiler, and more memory
dir=${GPUSLICE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/engines}

# Go verifies modules. Debian keeps only a package's newest revision: if the pinned one is gone, the newest is used, and noted in VERSIONS.
declare -A pins=(
	[containerd-2]=v2.4.2
	[docker-29]="moby v2.0.0-beta.24, docker-cli v29.8.2"
	[runc-1.4]=v1.4.0
	[runc-static]=v1.4.0
	[containerd-1.6]=1.6.20~ds1-1+deb12u3
	[runc-1.1]=1.1.5+ds1-1+deb12u1
	[docker-20]=20.10.24+dfsg1-1+deb12u1+b6
	[images]=bookworm
	[nerdctl]=v2.0.4
	[crio]=v1.36.1 # with Debian's conmon, and its own pinns
	[podman]=4.3.1+ds1-8+deb12u1+b3
	[crun]=1.8.1-1+deb12u1
	[nvidia]=v1.20.1
	[kubernetes]=v1.37.2 # and by modules/kubernetes/go.mod, with etcd
	[helm]="helm, kustomize" # tools of modules/kubernetes/go.mod
	[card]="docker-29 containerd-2 runc-static"
)
all=(containerd-2 docker-29 runc-1.4 runc-static containerd-1.6 runc-1.1 docker-20 images nerdctl podman crun crio nvidia)
# Built by name only: kubernetes, the programs of a cluster; helm, which has kustomize, too; and card/card.tar.xz, static programs that run
# containers on a machine without a network.
extra=(kubernetes helm card)

die() {
	echo "engines: $*" >&2
	exit 1
}

# Each engine has a function build_NAME. It runs in a directory of its own below the cache, under set -e, puts the engine in ./out, and
# leaves its printed version in $version.

number() {
	local said
	said=$("$1" --version)
	[[ $said =~ [0-9]+(\.[0-9]+)+[^[:space:],]* ]] || die "$1 --version prints no version: $said"
	echo "${BASH_REMATCH[0]}"
}

# module PACKAGE@VERSION…: build programs into out/, with $tags, $ldflags and $CGO_ENABLED
module() {
	GOBIN=$PWD/out "$go" install -p 2 -trimpath -tags "${tags:-}" -ldflags "-s -w ${ldflags:-}" "$@"
}

# fetch MODULE@VERSION: put a module into ./source, for from_source. go install refuses a module without a go.mod, or with a replace
# directive.
fetch() {
	local from
	from=$(cd / && "$go" mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	cp -r "$from" source
	chmod -R u+w source
}

# from_source PACKAGE: build a program into out/ at the versions of source/go.mod. The checksum database has the sums that source/go.sum
# lacks.
from_source() {
	local out=$PWD/out
	(cd source && "$go" build -p 2 -mod=mod -trimpath -tags "${tags:-}" -ldflags "-s -w ${ldflags:-}" -o "$out/" "$1")
}

# package NAME[=VERSION]…: unpack Debian's packages into ./deb
package() {
	local want apt=(apt-get -qq -o APT::Sandbox::User=root)
	for want in "$@"; do
		"${apt[@]}" download "$want" || "${apt[@]}" download "${want%%=*}" ||
			{ "${apt[@]}" update && "${apt[@]}" download "${want%%=*}"; }
		dpkg -x "${want%%=*}"_*.deb deb
	done
}

# libraries PROGRAM PACKAGE…: have a program find these libraries in its own directory, unlike LD_LIBRARY_PATH without effect on the
# programs that it starts
libraries() {
	local program=$1
	shift
	package patchelf "$@"
	mkdir -p out/lib
	find deb/lib deb/usr/lib -name '*.so.*' -exec cp -P {} out/lib/ \; 2>/dev/null || true
	deb/usr/bin/patchelf --force-rpath --set-rpath "\$ORIGIN/lib" "$program"
}

build_containerd_2() {
	local cmd=github.com/containerd/containerd/v2/cmd
	CGO_ENABLED=0 ldflags="-X github.com/containerd/containerd/v2/version.Version=${pin#v}" \
		module $cmd/{containerd,containerd-shim-runc-v2,ctr}@"$pin"
	version=$(number out/containerd)
}

build_docker_29() {
	local moby=${pin#moby v} cli=${pin#*docker-cli v}
	moby=${moby%%,*}
	# Static: only drivers that are left out here, disk quotas and the journal need cgo.
	CGO_ENABLED=0 tags="exclude_graphdriver_btrfs exclude_graphdriver_zfs no_embedded_containerd" \
		ldflags="-X github.com/moby/moby/v2/dockerversion.Version=$moby" \
		module "github.com/moby/moby/v2/cmd/dockerd@v$moby"
	fetch "github.com/docker/cli@v$cli+incompatible"
	mv source/vendor.mod source/go.mod
	mv source/vendor.sum source/go.sum
	CGO_ENABLED=0 ldflags="-X github.com/docker/cli/cli/version.Version=$cli" from_source ./cmd/docker
	init
	cli=$(number out/docker)
	version=$(number out/dockerd)
	version+=", command $cli"
}

# The init of `docker run --init`.
init() {
	package tini
	cp deb/usr/bin/tini-static out/docker-init
}

build_runc_1_4() {
	CGO_ENABLED=1 tags=$seccomp module "github.com/opencontainers/runc@$pin"
	version=$(number out/runc)
}

build_runc_static() {
	CGO_ENABLED=1 tags="$seccomp netgo osusergo" ldflags="-extldflags -static" module "github.com/opencontainers/runc@$pin"
	version=$(number out/runc)
}

build_containerd_1_6() {
	package "containerd=$pin"
	cp deb/usr/bin/{containerd,containerd-shim-runc-v2,ctr} out/
	version=$(number out/containerd)
}

build_runc_1_1() {
	package "runc=$pin"
	cp deb/usr/sbin/runc out/
	libraries out/runc libseccomp2
	version=$(number out/runc)
}

build_docker_20() {
	package "docker.io=$pin"
	cp deb/usr/sbin/dockerd deb/usr/bin/docker out/
	libraries out/dockerd libdevmapper1.02.1
	init
	version=$(number out/dockerd)
}

build_nerdctl() {
	fetch "github.com/containerd/nerdctl/v2@$pin"
	# Its source lacks the module of its tests.
	"$go" -C source mod edit -droprequire=github.com/containerd/nerdctl/mod/tigron \
		-dropreplace=github.com/containerd/nerdctl/mod/tigron@v0.0.0
	CGO_ENABLED=0 ldflags="-X github.com/containerd/nerdctl/v2/pkg/version.Version=${pin#v}" from_source ./cmd/nerdctl
	version=$(number out/nerdctl)
}

# Its configuration is in etc/containers: CONTAINERS_CONF and the like name it.
build_podman() {
	package "podman=$pin" conmon catatonit golang-github-containers-common golang-github-containers-image
	cp deb/usr/bin/{podman,conmon} out/
	cp deb/usr/bin/catatonit out/ # for --init and pods
	cp -r deb/etc deb/usr/share/containers out/
	libraries out/podman libgpgme11 libassuan0 libsubid4 libdevmapper1.02.1 libseccomp2
	libraries out/conmon libglib2.0-0
	out/conmon --version
	version=$(number out/podman)
}

build_crun() {
	package "crun=$pin"
	cp deb/usr/bin/crun out/
	libraries out/crun libyajl2 libseccomp2
	version=$(number out/crun)
}

# Without image signatures, and with overlay only. Go's module has the source of pinns, a C program.
build_crio() {
	fetch "github.com/cri-o/cri-o@$pin"
	sed -i 's/^\(\tk8s.io.* v[0-9.]*\)-rc\.[0-9]*\b/\1/' source/go.mod # some proxies lack release candidates
	cc -std=c99 -Os -static -o out/pinns source/pinns/src/*.c
	CGO_ENABLED=1 \
		tags="containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs btrfs_noversion exclude_graphdriver_devicemapper" \
		from_source ./cmd/crio
	package conmon
	cp deb/usr/bin/conmon out/
	libraries out/conmon libglib2.0-0
	out/conmon --version
	version=$(number out/crio)
}

build_nvidia() {
	local cmd=github.com/NVIDIA/nvidia-container-toolkit
	# It looks up the driver's functions at run time, so they must not be bound at its start.
	CGO_ENABLED=1 ldflags="-extldflags -Wl,-z,lazy -X $cmd/internal/info.version=${pin#v}" \
		module $cmd/cmd/{nvidia-container-runtime{,.cdi,.legacy,-hook},nvidia-ctk,nvidia-cdi-hook}@"$pin"
	version=$(number out/nvidia-ctk)
}

# All but kubectl are one program, modules/kubernetes/main.go. Modules in common with kubernetes/go.mod have the same version and tags, so
# they are compiled only once.
build_kubernetes() {
	local name
	cp -r "$root/test/engines/modules/kubernetes" source
	tags=grpcnotrace
	ldflags="-X k8s.io/component-base/version.gitVersion=$pin -X k8s.io/client-go/pkg/version.gitVersion=$pin \
		-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
	CGO_ENABLED=0 from_source .
	for name in etcd kubelet kube-apiserver kube-scheduler kube-controller-manager; do
		ln -s kubernetes "out/$name"
	done
	CGO_ENABLED=0 from_source k8s.io/kubernetes/cmd/kubectl
	version=$(number out/kubelet)
}

build_helm() {
	cp -r "$root/test/engines/modules/kubernetes" source
	tags=grpcnotrace
	CGO_ENABLED=0 from_source helm.sh/helm/v4/cmd/helm
	CGO_ENABLED=0 from_source sigs.k8s.io/kustomize/kustomize/v5
	version=$(awk '/helm.sh\/helm\/v4 v/ {print $2} /kustomize\/v5 v/ {print ", kustomize " $2}' ORS= "$root/test/engines/modules/kubernetes/go.mod")
}

# Root filesystems, each as a directory and as a tar for `docker import`:
#
#	debian   glibc, a setuid su, a user nobody; no manuals and no package manager
#	busybox  busybox, static, and nothing else
#	musl     musl, busybox, and test/platforms/musl.c
build_images() {
	local name mirror busybox musl
	[ "$EUID" = 0 ] || die "debootstrap needs root"
	# shellcheck disable=SC2016 # the format is apt's
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
	debootstrap --variant=minbase "$pin" out/debian "$mirror"
	(
		cd out/debian
		rm -rf dev/* var/lib/apt var/lib/dpkg var/cache/* var/log/* usr/share/{doc,man,info,locale,zoneinfo,perl5} \
			usr/lib/*/{gconv,perl-base} usr/bin/{apt,dpkg}* usr/lib/{apt,dpkg} usr/lib/*/libapt-*
	)
	mkdir -p out/busybox/bin out/musl
	busybox=$(command -v busybox) || die "busybox is not installed (test/deps.sh --ci)"
	cp "$busybox" out/busybox/bin/
	musl=$("$root/test/platforms/image.sh" musl) || die "no root filesystem with musl: test/platforms/image.sh failed"
	cp -a "$musl/root/." out/musl/
	for name in busybox musl; do
		(
			cd "out/$name"
			mkdir -p etc root tmp
			chmod 1777 tmp
			printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/sh >etc/passwd
			printf '%s\n' root:x:0: nogroup:x:65534: >etc/group
			bin/busybox --list | grep -vx busybox | while read -r applet; do ln -sf busybox "bin/$applet"; done
		)
	done
	for name in debian busybox musl; do
		chroot "out/$name" /bin/sh -c 'cat /etc/passwd' >/dev/null
		tar -C "out/$name" --sort=name --numeric-owner -cf "out/$name.tar" .
	done
	[ -u out/debian/bin/su ]
	version="debian $(cat out/debian/etc/debian_version)"
}

build_card() {
	tar -C "$dir" -cf - docker-29/{dockerd,docker,docker-init} containerd-2/{containerd,containerd-shim-runc-v2} runc-static/runc |
		xz -T0 -9 >out/card.tar.xz
	version=$(wc -c <out/card.tar.xz)
}

# what NAME: a checksum of all inputs of the engine's build
what() {
	{
		echo "${pins[$1]}"
		declare -f "build_${1//[-.]/_}" || exit
		case $1 in
		runc-*) echo "$seccomp" ;;
		docker-29 | nerdctl) declare -f fetch from_source ;;
		kubernetes | helm) declare -f from_source && cat "$root"/test/engines/modules/kubernetes/{go.mod,main.go} ;;
		crio) declare -f fetch from_source libraries ;;
		images) cat "$root"/test/platforms/{image.sh,musl.c} ;;
		card) for part in ${pins[card]}; do what "$part" || exit; done ;;
		podman | crun) declare -f libraries ;;
		esac
	} | sha256sum
}

ready() { # NAME
	local stamp sum
	[ -e "$dir/$1/stamp" ] || return
	stamp=$(<"$dir/$1/stamp") || die "cannot read $dir/$1/stamp"
	sum=$(what "$1") || die "cannot read the sources of $1"
	[ "$stamp" = "$sum" ]
}

# build NAME: build it under another name, then rename it
build() {
	local name=$1 work begin=$SECONDS version
	if [ "$name" = card ]; then
		for part in ${pins[card]}; do
			ready "$part" || build "$part"
		done
	fi
	rm -rf "$dir/.$name."*
	work=$(mktemp -d "$dir/.$name.XXXX")
	echo "engines: $name: building"
	# In the background, since set -e has no effect on the left of || and the like.
	(
		cd "$work"
		pin=${pins[$name]}
		mkdir out deb
		"build_${name//[-.]/_}"
		[ -n "$version" ]
		echo "$name $version" >out/version
		what "$name" >out/stamp
	) >"$dir/$name.log" 2>&1 &
	wait $! || {
		tail -20 "$dir/$name.log" >&2
		die "$name: the build failed ($dir/$name.log has all its output)"
	}
	chmod 755 "$work/out"
	[ ! -e "$dir/$name" ] || mv "$dir/$name" "$work/old"
	mv "$work/out" "$dir/$name"
	rm -rf "$work" "$dir/$name.log"
	cat "$dir"/*/version >"$dir/VERSIONS.new"
	mv "$dir/VERSIONS.new" "$dir/VERSIONS"
	echo "engines: $name: $((SECONDS - begin)) s"
}

root=$PWD
only_look=
if [ "${1:-}" = --ready ]; then
	only_look=1
	shift
fi
seccomp=
[ ! -e /usr/include/seccomp.h ] || seccomp=seccomp
names=("$@")
[ $# -gt 0 ] || names=("${all[@]}")
for name in "${names[@]}"; do
	[ -n "${pins[$name]:-}" ] || die "no engine is called $name; there are ${all[*]} ${extra[*]}"
done
if [ -n "$only_look" ]; then
	lacking=()
	for name in "${names[@]}"; do
		ready "$name" || lacking+=("$name")
	done
	[ ${#lacking[@]} = 0 ] || die "not built: test/engines/build.sh ${lacking[*]}"
	exit
fi
mkdir -p "$dir"
for name in "${names[@]}"; do
	ready "$name" && continue
	# One build at a time: each takes all cores.
	exec 9>"$dir/lock"
	flock 9
	ready "$name" || build "$name"
	exec 9>&-
done
echo "engines: ready"
echo "$dir"
