#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# node.sh install|run|ready: gpusliced in a pod, in the image gpuslice. Does nothing on a node without NVIDIA's driver.
#
# The files for containers are on the host itself, in $HOST_DIR, which the pod has at the same path: the hook, the library and the
# configuration. Each file is replaced atomically. Running programs keep the old one, and a library's directory stays while a pod uses it
# (library.sh).
set -eu
: "${HOST_DIR:?}" "${DRIVER_ROOT:?}"

# nvml prints the path of the driver's library below DRIVER_ROOT, the host's root directory: in distributions' places, or in those of GPU
# operators. Links out of its directory do not resolve here.
nvml() {
	for dir in usr/lib/*-linux-gnu usr/lib/*-linux-gnu/nvidia/current usr/lib64 usr/lib home/kubernetes/bin/nvidia/lib64 opt/nvidia/lib64; do
		for root in "$DRIVER_ROOT" "$DRIVER_ROOT/run/nvidia/driver"; do
			for library in "${root%/}"/$dir/libnvidia-ml.so.1; do
				if [ -f "$library" ]; then
					echo "$library"
					return 0
				fi
			done
		done
	done
	return 1
}

put() { # MODE SOURCE TARGET
	mkdir -p "$(dirname "$3")"
	cp "$2" "$3.new.$$"
	chmod "$1" "$3.new.$$"
	mv -f "$3.new.$$" "$3"
	echo "  $3"
}

install() {
	version=$(gpusliced --version)
	hook=$(command -v gpuslice-hook)
	# shellcheck source=configs/library.sh
	. "$(dirname "$0")/library.sh"
	gpuslice_add "$(dirname "$0")/libgpuslice.so" "$HOST_DIR/lib" "${version#* }"
	put 0644 "${CONFIG:-/etc/gpuslice/config.toml}" "$HOST_DIR/config.toml"
	put 0755 "$hook" "$HOST_DIR/bin/gpuslice-hook" # last: it needs both
}

case ${1:-} in
install)
	if nvml >/dev/null; then
		install
	else
		echo "nothing is installed: no libnvidia-ml.so.1 of NVIDIA's driver below $DRIVER_ROOT"
	fi
	;;
run)
	if ! nvml >/dev/null; then
		echo "waiting for libnvidia-ml.so.1 of NVIDIA's driver below $DRIVER_ROOT"
		until nvml >/dev/null; do sleep 10; done
		install
	fi
	# The library alone, since its directory has the host's C library, too.
	LD_PRELOAD=$(nvml)
	export LD_PRELOAD
	exec gpusliced
	;;
ready)
	! nvml >/dev/null || exec gpuslice ps --quiet >/dev/null
	;;
*)
	echo "usage: node.sh install|run|ready" >&2
	exit 64
	;;
esac
