// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Unknown stands for the bytes of a process if NVML lists it without them (in confidential computing mode, on some vGPUs). Never add it to
// a sum.
const Unknown = math.MaxUint64

// ErrUntold is the error of a caller that needs such bytes.
var ErrUntold = errors.New("the driver does not report the memory of each process")

// Processes returns the bytes that each process holds on a device, by pid on the host, or Unknown. A process that uses compute and
// graphics, or MPS, is on several of the driver's lists, each time with its total. So the largest figure counts, not the sum.
func (n *NVML) Processes(uuid string) (map[int]uint64, error) {
	device, err := n.handle(uuid)
	if err != nil {
		return nil, err
	}
	lists := []struct {
		symbol   string
		required bool
		read     func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", true, device.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", false, device.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", false, device.GetMPSComputeRunningProcesses},
	}
	held := make(map[int]uint64)
	for _, list := range lists {
		var infos []nvml.ProcessInfo
		ret := nvml.ERROR_FUNCTION_NOT_FOUND
		if n.hasVersionOf(list.symbol) {
			infos, ret = list.read()
		}
		if absent := ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND; absent && !list.required {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("cannot list the processes on %s: %s: %w", uuid, list.symbol, ret)
		}
		for _, info := range infos {
			add(held, int(info.Pid), info.UsedGpuMemory)
		}
	}
	return held, nil
}

// add records the bytes of pid from one list. Unknown does not replace a figure of another list.
func add(held map[int]uint64, pid int, bytes uint64) {
	before, listed := held[pid]
	if !listed || before == Unknown || (bytes != Unknown && bytes > before) {
		held[pid] = bytes
	}
}

// hasVersionOf reports whether the library has any version of symbol. go-nvml calls the newest.
func (n *NVML) hasVersionOf(symbol string) bool {
	return n.has(symbol) || n.has(symbol+"_v2") || n.has(symbol+"_v3")
}
