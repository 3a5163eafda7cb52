// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Drivers since R615 (CUDA 13.4) limit the bytes of a cgroup on a device themselves: NVML's nvmlDeviceSetMemoryLimits_v1. According to
// NVIDIA's "MPS v3 Memory Partitioning", an allocation beyond the hard limit is refused to any process, MIG instances have no limits, and
// managed memory is not counted. The soft limit is guaranteed to the cgroup, is added to every cgroup above it, and stays there if the
// cgroup is removed before it is reset. So this package always sets it to 0.

// NoLimit is the value of a cgroup and device without a limit.
const NoLimit = math.MaxUint64

var (
	// ErrNoLimits means that the driver or the device has no limits for cgroups. The error that wraps it says why.
	ErrNoLimits = errors.New("the driver cannot limit a cgroup's memory on the device")
	// ErrNoController means that the driver keeps limits by the kernel's dmem controller, which the cgroup does not have.
	ErrNoController = errors.New("the cgroup has no dmem controller")
	// ErrNoCgroup means that there is no cgroup at the path.
	ErrNoCgroup = errors.New("no such cgroup")
)

// limiters are the NVML functions that Limit, Limited and Unlimit need.
var limiters = []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}

// Limit makes the driver refuse allocations by which the processes of a cgroup would exceed bytes on a device. cgroup is a directory.
// Memory that they already hold stays. bytes must not exceed the device's total. It needs root.
func (n *NVML) Limit(cgroup, uuid string, bytes uint64) error {
	device, err := n.limitable(uuid)
	if err != nil {
		return err
	}
	if ret := device.SetMemoryLimits_v1(cgroup, 0, bytes); ret != nvml.SUCCESS {
		return fmt.Errorf("cannot limit %s to %d bytes on %s: %w", cgroup, bytes, uuid, limitError(ret))
	}
	return nil
}

// Limited returns the bytes set by Limit, or NoLimit.
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
		return 0, fmt.Errorf("cannot read the limit of %s on %s: %w", cgroup, uuid, limitError(ret))
	}
}

// Unlimit removes a limit. It succeeds if there is no limit, or no such cgroup.
func (n *NVML) Unlimit(cgroup, uuid string) error {
	device, err := n.limitable(uuid)
	if err != nil {
		return err
	}
	switch ret := device.SetMemoryLimits_v1(cgroup, 0, nvml.DEVICE_MEMORY_LIMIT_MAX); ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND, nvml.ERROR_OPERATING_SYSTEM:
		return nil
	default:
		return fmt.Errorf("cannot remove the limit of %s on %s: %w", cgroup, uuid, limitError(ret))
	}
}

func (n *NVML) limitable(uuid string) (nvml.Device, error) {
	for _, symbol := range limiters {
		if !n.has(symbol) {
			return nil, fmt.Errorf("%w: it has no %s: a driver of R615 or newer is needed", ErrNoLimits, symbol)
		}
	}
	return n.handle(uuid)
}

// limitError converts an NVML error of a limit call.
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
