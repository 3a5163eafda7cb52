// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Device is a GPU, or an instance of one in MIG mode.
type Device struct {
	UUID   string
	Raw    [16]byte // as cuDeviceGetUuid_v2 returns it
	Index  int      // NVML's; -1 for a MIG instance
	Minor  int      // minor number of the device node /dev/nvidiaN, also for its MIG instances; -1 if NVML does not report it
	Name   string
	Total  uint64 // bytes
	Parent string // UUID of a MIG instance's GPU, or ""

	PCI        string // such as "0000:3b:00.0", also for its MIG instances; "" if NVML does not report it
	Capability string // CUDA's, such as "9.0"; likewise
}

// Devices lists the present devices. It leaves out a GPU in MIG mode, since CUDA exposes only its instances. It also leaves out a device
// that cannot be read (one that fell off the bus) and returns an error, with a valid list of the others.
func (n *NVML) Devices() ([]Device, error) {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("cannot count the devices: %w", ret)
	}
	var devices []Device
	var errs []error
	handles := make(map[string]nvml.Device)
	list := func(handle nvml.Device, index int, parent string) *Device {
		d, err := describe(handle, index, parent)
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		return &d
	}
	keep := func(d *Device, handle nvml.Device) {
		devices = append(devices, *d)
		handles[d.UUID] = handle
	}
	for i := range count {
		handle, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			errs = append(errs, fmt.Errorf("device %d: %w", i, ret))
			continue
		}
		gpu := list(handle, i, "")
		if gpu == nil {
			continue
		}
		gpu.Minor, gpu.PCI, gpu.Capability = n.minor(handle), n.pci(handle), n.capability(handle)
		instances, mig := n.instances(handle)
		if !mig {
			keep(gpu, handle)
			continue
		}
		for _, instance := range instances {
			if d := list(instance, -1, gpu.UUID); d != nil {
				d.Minor, d.PCI, d.Capability = gpu.Minor, gpu.PCI, gpu.Capability
				keep(d, instance)
			}
		}
	}
	n.mu.Lock()
	n.handles = handles
	n.mu.Unlock()
	return devices, errors.Join(errs...)
}

// instances returns the MIG instances of a GPU, or false if it is not in MIG mode.
func (n *NVML) instances(gpu nvml.Device) ([]nvml.Device, bool) {
	for _, symbol := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		if !n.has(symbol) {
			return nil, false
		}
	}
	mode, _, ret := gpu.GetMigMode() // NOT_SUPPORTED on cards without MIG
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil, false
	}
	count, ret := gpu.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, true
	}
	var instances []nvml.Device
	for i := range count {
		// The indexes are sparse: NOT_FOUND is a gap.
		if instance, ret := gpu.GetMigDeviceHandleByIndex(i); ret == nvml.SUCCESS {
			instances = append(instances, instance)
		}
	}
	return instances, true
}

func (n *NVML) minor(gpu nvml.Device) int {
	if !n.has("nvmlDeviceGetMinorNumber") {
		return -1
	}
	minor, ret := gpu.GetMinorNumber() // NOT_SUPPORTED under WSL, which has no such nodes
	if ret != nvml.SUCCESS {
		return -1
	}
	return minor
}

func (n *NVML) pci(gpu nvml.Device) string {
	if !n.has("nvmlDeviceGetPciInfo_v3") {
		return ""
	}
	pci, ret := gpu.GetPciInfo()
	if ret != nvml.SUCCESS {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device) // a GPU is function 0 of its device
}

func (n *NVML) capability(gpu nvml.Device) string {
	if !n.has("nvmlDeviceGetCudaComputeCapability") {
		return ""
	}
	major, minor, ret := gpu.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		return ""
	}
	return fmt.Sprintf("%d.%d", major, minor)
}

func describe(handle nvml.Device, index int, parent string) (Device, error) {
	what := fmt.Sprintf("device %d", index)
	if parent != "" {
		what = "a MIG instance of " + parent
	}
	text, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("UUID of %s: %w", what, ret)
	}
	uuid, err := ParseUUID(text)
	if err != nil {
		return Device{}, fmt.Errorf("UUID of %s: %w", what, err)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return Device{}, fmt.Errorf("memory of %s: %w", text, ret)
	}
	name, ret := handle.GetName()
	if ret != nvml.SUCCESS {
		name = ""
	}
	return Device{
		UUID: uuid.String(), Raw: uuid.Raw, Index: index,
		Name: strings.TrimSpace(name), Total: memory.Total, Parent: parent,
	}, nil
}

// Used returns the bytes of a device's memory that are in use, including the driver's own.
func (n *NVML) Used(uuid string) (uint64, error) {
	device, err := n.handle(uuid)
	if err != nil {
		return 0, err
	}
	memory, ret := device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, fmt.Errorf("memory of %s: %w", uuid, ret)
	}
	return memory.Used, nil
}

// handle returns the handle of a device. It lists the devices again if the UUID is unknown.
func (n *NVML) handle(uuid string) (nvml.Device, error) {
	if h := n.handleOf(uuid); h != nil {
		return h, nil
	}
	_, err := n.Devices()
	if h := n.handleOf(uuid); h != nil {
		return h, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %s: %w (%w)", uuid, ErrNoDevice, err)
	}
	return nil, fmt.Errorf("device %s: %w", uuid, ErrNoDevice)
}

func (n *NVML) handleOf(uuid string) nvml.Device {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.handles[uuid]
}
