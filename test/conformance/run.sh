#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh DIR [PROGRAM…]: run the conformance programs of DIR (bin/conformance), all or those named, on the driver
# that the loader finds, and print what they see. They need a card to themselves.
set -u
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
	echo "usage: $0 DIR [PROGRAM…]" >&2
	exit 2
fi

dir=$1 status=0
shift
[ $# -gt 0 ] || set -- info alloc pool pointer vmm elastic share ipc outlive external array tile context graph graph_full capture limit module kernel arithmetic stack many places green checkpoint procaddr nvml fault link
for program; do
	echo "[$program]"
	"$dir/$program" || {
		echo "exit: $?"
		status=1
	}
done
exit $status
