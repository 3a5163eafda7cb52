// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Busy says in how much of the time since then kernels of each process ran on a device, in percent, by its pid on the host; a process that is
// not there had none run. nil is not known: the driver does not say it of this device, as of MIG instances.
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
	case nvml.ERROR_NOT_FOUND: // nobody was
		return busy, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return nil, nil
	default:
		return nil, fmt.Errorf("utilization on %s: %s: %w", uuid, symbol, ret)
	}
	last := make(map[int]uint64)
	for _, s := range samples {
		// The list has room for more than there are: what was not filled in has no time.
		if pid := int(s.Pid); s.TimeStamp > last[pid] && s.SmUtil <= 100 {
			last[pid], busy[pid] = s.TimeStamp, s.SmUtil
		}
	}
	return busy, nil
}
