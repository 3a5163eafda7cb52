# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
#
# To be sourced, in the root of the tree: use the real driver if there is one, else the simulated. Sets
# `driver` (real or simulated) and `driver_dir` (where the simulated libraries are, else "").

driver=simulated
driver_dir=$PWD/bin/fakecuda
if [ "${GPUSLICE_DRIVER:-}" != simulated ] && [ -e /dev/nvidiactl ]; then
	libraries=$(/sbin/ldconfig -p) || exit
	if [[ $libraries == *libcuda.so.1* ]]; then
		driver=real
		driver_dir=
	fi
fi
