// SPDX-License-Identifier: Apache-2.0

// Package inventory publishes a node's GPUs and the memory available to claims as ResourceSlices, at a bounded rate. It only
// reads from the enforcer.
package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/api"
)

const (
	// Memory is the name of the capacity that claims request.
	Memory = "memory"
	// Elastic is the attribute that is true on devices for elastic claims and false on others.
	Elastic = "elastic"
	// PoolPrefix begins the names of the enforcer's pools that belong to claims.
	PoolPrefix = "dra-"

	// MinMemory is the minimum of a request, in bytes. Less does not suffice for a CUDA context.
	MinMemory = 64 * step
	step      = 1 << 20
)

// Taints of devices on which no claim can be prepared now. NoSchedule does not affect running pods.
const (
	TaintUnreachable = "gpuslice.io/unreachable" // the enforcer does not answer
	TaintUnhealthy   = "gpuslice.io/unhealthy"   // the enforcer can grant nothing on the device
)

// DeviceName returns the name of a device in Kubernetes.
func DeviceName(uuid string) string { return strings.ToLower(uuid) }

const elasticPrefix = "elastic-"

// ElasticName returns the name of a card's device for elastic claims, which has its own capacity.
func ElasticName(uuid string) string { return elasticPrefix + DeviceName(uuid) }

// IsElastic reports whether name is that of a device for elastic claims.
func IsElastic(name string) bool { return strings.HasPrefix(name, elasticPrefix) }

// UUID returns the UUID of the device with the given name.
func UUID(name string) string {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(name, elasticPrefix), "-")
	return strings.ToUpper(kind) + "-" + rest
}

// Host is the state of the host as reported by the enforcer. The parts are read at different times, so capacities use Devices
// alone: a pool created in between would be neither free nor a claim's.
type Host struct {
	Driver  string // version of NVIDIA's driver
	Devices []api.Device
	Pools   []api.Pool
	Health  api.Health
}

// Of returns the devices to publish for a host, the fullest first, since the scheduler takes the first that fits. With elastic
// each card also has a device for elastic claims, the emptiest first, since containers that share a card take turns.
func Of(h Host, elastic bool) []resourceapi.Device {
	devices := slices.DeleteFunc(slices.Clone(h.Devices), func(d api.Device) bool { return d.Free == nil })
	slices.SortStableFunc(devices, func(a, b api.Device) int {
		return cmp.Or(cmp.Compare(*a.Free, *b.Free), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	var all []resourceapi.Device
	for _, d := range devices {
		// The scheduler counts the memory of claims itself; memory used by others is not available.
		has := *d.Free + claimed(d.Pools)
		if d.Elastic != nil {
			has += d.Elastic.Idle / coarse * coarse
		}
		has -= min(has, outside(d))
		all = append(all, entry(h, d, DeviceName(d.UUID), has, has)...)
	}
	if !elastic {
		return all
	}
	devices = slices.DeleteFunc(devices, func(d api.Device) bool { return d.Elastic == nil })
	slices.SortStableFunc(devices, func(a, b api.Device) int { return cmp.Compare(b.Elastic.Free, a.Elastic.Free) })
	for _, d := range devices {
		has := d.Elastic.Free + claimed(d.Elastic.Pools)
		all = append(all, entry(h, d, ElasticName(d.UUID), has, min(has, d.Elastic.Most))...)
	}
	return all
}

// entry returns a device with a total and a maximum per request in bytes, or none if the maximum is below MinMemory.
func entry(h Host, d api.Device, name string, bytes, most uint64) []resourceapi.Device {
	if most < MinMemory {
		return nil
	}
	device := resourceapi.Device{
		Name: name, AllowMultipleAllocations: ptr.To(true), Attributes: attributes(h.Driver, d),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{Memory: capacity(bytes, most)},
	}
	device.Attributes[Elastic] = resourceapi.DeviceAttribute{BoolValue: ptr.To(IsElastic(name))}
	if why := Unhealthy(h.Health, d.UUID); why != "" {
		device.Taints = []resourceapi.DeviceTaint{{Key: TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return []resourceapi.Device{device}
}

// coarse is the step in bytes to which varying amounts are rounded, to save writes.
const coarse = 256 << 20

// Outside returns the memory of programs outside slices above the reserve, in bytes.
func Outside(d api.Device) uint64 { return d.OutsideUsed - min(d.OutsideUsed, d.Reserve) }

// outside is Outside, rounded up.
func outside(d api.Device) uint64 { return (Outside(d) + coarse - 1) / coarse * coarse }

// capacity returns a total and a maximum per request in bytes, in steps of a mebibyte. The API server rejects a ResourceSlice
// with a bound above the value.
func capacity(bytes, most uint64) resourceapi.DeviceCapacity {
	quantity := func(bytes uint64) *resource.Quantity {
		return resource.NewQuantity(int64(bytes/step*step), resource.BinarySI)
	}
	return resourceapi.DeviceCapacity{Value: *quantity(bytes), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    quantity(most),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(MinMemory), Max: quantity(most), Step: quantity(step)},
	}}
}

func claimed(pools map[string]uint64) (bytes uint64) {
	for name, has := range pools {
		if strings.HasPrefix(name, PoolPrefix) {
			bytes += has
		}
	}
	return bytes
}

// Unhealthy returns why no claim can be prepared on a device, or "".
func Unhealthy(h api.Health, uuid string) string {
	for _, c := range h.Checks {
		if !c.OK && c.For != "" && (c.Device == "" || c.Device == uuid) {
			return c.Name + ": " + c.Message
		}
	}
	return ""
}

// attributes returns a device's attributes, named as by NVIDIA's driver so that selectors work with both.
func attributes(driver string, d api.Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	kind, _, _ := strings.Cut(DeviceName(d.UUID), "-")
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": text(kind), "uuid": text(d.UUID)}
	if d.Name != "" {
		all["productName"] = text(d.Name[:min(len(d.Name), resourceapi.DeviceAttributeMaxValueLength)])
	}
	if d.Index >= 0 {
		all["index"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(d.Index))}
	}
	if name := architecture(d.ComputeCapability); name != "" {
		all["architecture"] = text(name)
	}
	for name, version := range map[resourceapi.QualifiedName]string{"driverVersion": driver, "cudaComputeCapability": d.ComputeCapability} {
		if v := semantic(version); v != "" {
			all[name] = resourceapi.DeviceAttribute{VersionValue: &v}
		}
	}
	if a, err := deviceattribute.GetPCIBusIDAttribute(d.PCI); err == nil {
		all[a.Name] = a.Value
	}
	if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(d.PCI); err == nil { // a simulated card has none
		all[a.Name] = a.Value
	}
	return all
}

// semantic converts a version to three numbers without leading zeros, the form that Kubernetes compares, or "" for other text.
func semantic(version string) string {
	parts := strings.SplitN(version, ".", 3)
	numbers := [3]uint64{}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return ""
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2])
}

// architecture returns NVIDIA's name for a compute capability, or "".
func architecture(capability string) string {
	var major, minor int
	if n, _ := fmt.Sscanf(capability, "%d.%d", &major, &minor); n != 2 {
		return ""
	}
	switch {
	case major == 5:
		return "Maxwell"
	case major == 6:
		return "Pascal"
	case major == 7 && minor < 5:
		return "Volta"
	case major == 7:
		return "Turing"
	case major == 8 && minor < 9:
		return "Ampere"
	case major == 8:
		return "Ada Lovelace"
	case major == 9:
		return "Hopper"
	case major >= 10 && major <= 12:
		return "Blackwell"
	}
	return ""
}

// maxPerSlice is the maximum number of devices in a ResourceSlice with taints or shared devices.
const maxPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

func resources(node string, devices []resourceapi.Device) resourceslice.DriverResources {
	var pool resourceslice.Pool
	for part := range slices.Chunk(devices, maxPerSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: part})
	}
	if len(pool.Slices) == 0 { // a node without a GPU has no slice
		return resourceslice.DriverResources{}
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}

// unreachable returns the published devices with a taint, so that new pods do not wait for claims that cannot be prepared.
func unreachable(published []resourceapi.Device) []resourceapi.Device {
	tainted := slices.Clone(published)
	for i := range tainted {
		tainted[i].Taints = []resourceapi.DeviceTaint{{Key: TaintUnreachable, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return tainted
}
