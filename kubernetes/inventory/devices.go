// SPDX-License-Identifier: Apache-2.0

// Package inventory tells the scheduler which GPUs a node has, and how much memory of each claims may have. It reads the enforcer, and
// writes ResourceSlices at a bounded rate; it grants nothing.
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
	// Memory is the capacity that claims ask for.
	Memory = "memory"
	// Elastic is the attribute of the devices that are for elastic claims: true; of the others it is false.
	Elastic = "elastic"
	// PoolPrefix begins the names of the enforcer's pools that are claims'.
	PoolPrefix = "dra-"

	// MinMemory is the least that a request may have: less than a CUDA context takes is of no use.
	MinMemory = 64 * step
	step      = 1 << 20
)

// Taints of devices for which no claim can be prepared now. NoSchedule leaves the pods that run alone.
const (
	TaintUnreachable = "gpuslice.io/unreachable" // the enforcer does not answer
	TaintUnhealthy   = "gpuslice.io/unhealthy"   // it can grant nothing on the device
)

// DeviceName is a device's name in Kubernetes.
func DeviceName(uuid string) string { return strings.ToLower(uuid) }

// elasticPrefix begins the name of the device that is a card's for elastic claims.
const elasticPrefix = "elastic-"

// ElasticName is a device's name in Kubernetes for elastic claims, whose capacity is another.
func ElasticName(uuid string) string { return elasticPrefix + DeviceName(uuid) }

// IsElastic says whether it is a device for elastic claims.
func IsElastic(name string) bool { return strings.HasPrefix(name, elasticPrefix) }

// UUID is the device of that name.
func UUID(name string) string {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(name, elasticPrefix), "-")
	return strings.ToUpper(kind) + "-" + rest
}

// Host is what the enforcer says of the host. Each part is of its own moment: what is published of a device comes from Devices alone, since a
// pool that is created between two answers would be neither free nor a claim's.
type Host struct {
	Driver  string // version of NVIDIA's driver
	Devices []api.Device
	Pools   []api.Pool
	Health  api.Health
}

// Of is what is published of a host: the fullest device first, since the scheduler takes the first that fits. With elastic there is a second device
// for each card, for elastic claims, and of these the emptiest comes first: those who share a card take turns.
func Of(h Host, elastic bool) []resourceapi.Device {
	devices := slices.DeleteFunc(slices.Clone(h.Devices), func(d api.Device) bool { return d.Free == nil })
	slices.SortStableFunc(devices, func(a, b api.Device) int {
		return cmp.Or(cmp.Compare(*a.Free, *b.Free), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	var all []resourceapi.Device
	for _, d := range devices {
		// Claims' memory is the scheduler's to count; what others have, in slices and beside them, is not there for claims.
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

// entry is a device of so many bytes, of which a request may have most; none if that is too little for any.
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

// coarse is to how many bytes what comes and goes is rounded: what programs take and give back by the mebibyte shall not be a write each time.
const coarse = 256 << 20

// outside is what programs in no slice hold beyond the reserve, which is theirs, rounded up.
func outside(d api.Device) uint64 {
	return (d.OutsideUsed - min(d.OutsideUsed, d.Reserve) + coarse - 1) / coarse * coarse
}

// capacity is so many bytes, of which a request may have most, and each mebibyte of that. A policy's bounds beyond the value would have the API
// server refuse the whole slice.
func capacity(bytes, most uint64) resourceapi.DeviceCapacity {
	quantity := func(bytes uint64) *resource.Quantity {
		return resource.NewQuantity(int64(bytes/step*step), resource.BinarySI)
	}
	return resourceapi.DeviceCapacity{Value: *quantity(bytes), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    quantity(most),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(MinMemory), Max: quantity(most), Step: quantity(step)},
	}}
}

// claimed is the bytes of claims' pools.
func claimed(pools map[string]uint64) (bytes uint64) {
	for name, has := range pools {
		if strings.HasPrefix(name, PoolPrefix) {
			bytes += has
		}
	}
	return bytes
}

// Unhealthy says why no claim can be prepared on a device; "" if one can.
func Unhealthy(h api.Health, uuid string) string {
	for _, c := range h.Checks {
		if !c.OK && c.For != "" && (c.Device == "" || c.Device == uuid) {
			return c.Name + ": " + c.Message
		}
	}
	return ""
}

// attributes have the names that NVIDIA's driver gives them, so that selectors work with both.
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

// semantic is a version as Kubernetes compares it: three numbers without leading zeros. It is "" of what is no version.
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

// architecture is NVIDIA's name for a compute capability.
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

// maxPerSlice is how many devices a ResourceSlice may have whose devices have taints or are shared.
const maxPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// resources are the devices of a node as the API wants them.
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

// unreachable is what was published of a host whose enforcer has gone: no new pod waits for a claim that nobody prepares.
func unreachable(published []resourceapi.Device) []resourceapi.Device {
	tainted := slices.Clone(published)
	for i := range tainted {
		tainted[i].Taints = []resourceapi.DeviceTaint{{Key: TaintUnreachable, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return tainted
}
