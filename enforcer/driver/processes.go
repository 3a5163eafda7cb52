// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Unknown is the bytes of a process that is on the device without NVML knowing what it holds (in confidential
// computing mode, on some vGPUs). It is never to be added to anything.
const Unknown = math.MaxUint64

// Processes says what each process holds on a device, in bytes, by its pid on the host: Unknown where NVML does
// not know. A process that uses both compute and graphics, or MPS, is on several of the driver's lists, each time
// with all that it holds; so the larger figure counts, not the sum.
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
			return nil, fmt.Errorf("processes on %s: %s: %w", uuid, list.symbol, ret)
		}
		for _, info := range infos {
			add(held, int(info.Pid), info.UsedGpuMemory)
		}
	}
	return held, nil
}

// add notes that a list says bytes for pid. What one list knows, another one's "not available" does not undo.
func add(held map[int]uint64, pid int, bytes uint64) {
	before, listed := held[pid]
	if !listed || before == Unknown || (bytes != Unknown && bytes > before) {
		held[pid] = bytes
	}
}

// hasVersionOf says whether the library has any version of symbol; go-nvml calls the newest.
func (n *NVML) hasVersionOf(symbol string) bool {
	return n.has(symbol) || n.has(symbol+"_v2") || n.has(symbol+"_v3")
}
