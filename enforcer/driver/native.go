// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Drivers from R615 on (CUDA 13.4) hold a cgroup to a number of bytes on a device themselves: NVML's
// nvmlDeviceSetMemoryLimits_v1. NVIDIA's "MPS v3 Memory Partitioning" says what comes of it: an allocation that would
// pass the hard limit is refused to any process; MIG instances have no limits; managed memory is not counted. The soft limit
// is what a cgroup is guaranteed, is added to every cgroup above it, and stays there if the cgroup is removed before it was
// set back; so it is never set here to anything but 0.

// NoLimit is what a cgroup has on a device where nothing was set.
const NoLimit = math.MaxUint64

var (
	// ErrNoLimits says that the driver or the device has no limits for cgroups; the error around it says why.
	ErrNoLimits = errors.New("the driver holds no cgroup to a limit there")
	// ErrNoController says that the driver keeps limits by the kernel's dmem controller, and the cgroup does not have it.
	ErrNoController = errors.New("the cgroup has no dmem controller")
	// ErrNoCgroup says that there is no cgroup at that path.
	ErrNoCgroup = errors.New("no such cgroup")
)

// limiters are the functions that NVML must have for Limit, Limited and Unlimit.
var limiters = []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}

// Limit has the driver refuse what would make the processes of a cgroup, whose directory it is given, hold more than bytes of a
// device. What they hold beyond that already stays. bytes may not be more than the device has. It takes root.
func (n *NVML) Limit(cgroup, uuid string, bytes uint64) error {
	device, err := n.limitable(uuid)
	if err != nil {
		return err
	}
	if ret := device.SetMemoryLimits_v1(cgroup, 0, bytes); ret != nvml.SUCCESS {
		return fmt.Errorf("limit %s to %d bytes on %s: %w", cgroup, bytes, uuid, limitError(ret))
	}
	return nil
}

// Limited is the bytes that Limit has set, or NoLimit.
func (n *NVML) Limited(cgroup, uuid string) (uint64, error) {
	device, err := n.limitable(uuid)
	if err != nil {
		return 0, err
	}
	limits, ret := device.GetMemoryLimits_v1(cgroup)
	switch ret {
	case nvml.SUCCESS:
		return limits.HardLimit, nil
	case nvml.ERROR_NOT_FOUND:
		return NoLimit, nil
	default:
		return 0, fmt.Errorf("limit of %s on %s: %w", cgroup, uuid, limitError(ret))
	}
}

// Unlimit takes a limit away. That there is none, or no such cgroup, is not an error.
func (n *NVML) Unlimit(cgroup, uuid string) error {
	device, err := n.limitable(uuid)
	if err != nil {
		return err
	}
	switch ret := device.SetMemoryLimits_v1(cgroup, 0, nvml.DEVICE_MEMORY_LIMIT_MAX); ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND, nvml.ERROR_OPERATING_SYSTEM:
		return nil
	default:
		return fmt.Errorf("take away the limit of %s on %s: %w", cgroup, uuid, limitError(ret))
	}
}

func (n *NVML) limitable(uuid string) (nvml.Device, error) {
	for _, symbol := range limiters {
		if !n.has(symbol) {
			return nil, fmt.Errorf("%w: it has no %s, which drivers have from R615 on", ErrNoLimits, symbol)
		}
	}
	return n.handle(uuid)
}

// limitError is what NVML answers as what it means for a limit.
func limitError(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return fmt.Errorf("%w: %w", ErrNoLimits, ret)
	case nvml.ERROR_NOT_FOUND:
		return ErrNoController
	case nvml.ERROR_OPERATING_SYSTEM:
		return ErrNoCgroup
	default:
		return ret
	}
}
