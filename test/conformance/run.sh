#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh DIR: run every conformance program of DIR (bin/conformance) on the driver that the
# loader finds, and print what they see. They want a card to themselves.
set -u
if [ $# -ne 1 ] || [ ! -d "$1" ]; then
	echo "usage: $0 DIR" >&2
	exit 2
fi

status=0
for program in info alloc pool vmm elastic share ipc outlive external array tile context graph graph_full capture limit module kernel arithmetic stack many places green checkpoint procaddr nvml fault link; do
	echo "[$program]"
	"$1/$program" || {
		echo "exit: $?"
		status=1
	}
done
exit $status
