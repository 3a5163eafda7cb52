// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Busy returns the percentage of the time since since during which kernels of each process ran on a device, by pid on the host. A process
// without an entry ran none. The map is nil if the driver does not report it, as for MIG instances.
func (n *NVML) Busy(uuid string, since time.Time) (map[int]uint32, error) {
	const symbol = "nvmlDeviceGetProcessUtilization"
	device, err := n.handle(uuid)
	if err != nil || !n.has(symbol) {
		return nil, err
	}
	samples, ret := device.GetProcessUtilization(uint64(max(since.UnixMicro(), 0)))
	busy := make(map[int]uint32)
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND: // no process ran kernels
		return busy, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return nil, nil
	default:
		return nil, fmt.Errorf("utilization on %s: %s: %w", uuid, symbol, ret)
	}
	last := make(map[int]uint64)
	for _, s := range samples {
		// The list has room for more entries than there are. An unused entry has no timestamp.
		if pid := int(s.Pid); s.TimeStamp > last[pid] && s.SmUtil <= 100 {
			last[pid], busy[pid] = s.TimeStamp, s.SmUtil
		}
	}
	return busy, nil
}
