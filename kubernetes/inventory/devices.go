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

	// Size is the attribute of devices of one fixed size, such as "8Gi".
	Size = "size"

	// MinMemory is the minimum of a request, in bytes. Less does not suffice for a CUDA context.
	MinMemory = 64 * step
	// minSize bounds the number of devices that a card is published as.
	minSize = 1024 * step
	step    = 1 << 20
)

// Offer is the operator's choice of the devices to publish for a card.
type Offer struct {
	Elastic bool     // publish a second device for elastic claims
	Default uint64   // bytes of a request without a size; 0 for the whole card
	Sizes   []uint64 // sizes of further devices, in bytes, for extended resources, which cannot name one
}

// ParseDefault parses Offer.Default.
func ParseDefault(text string) (uint64, error) { return parse(text, MinMemory) }

// ParseSizes parses Offer.Sizes, which commas separate.
func ParseSizes(text string) (sizes []uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		bytes, err := parse(part, minSize)
		if err != nil {
			return nil, err
		}
		if slices.Contains(sizes, bytes) {
			return nil, fmt.Errorf("size %q is listed twice: list each once", part)
		}
		sizes = append(sizes, bytes)
	}
	return sizes, nil
}

func parse(text string, least uint64) (uint64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < int64(least) || q.Value()%step != 0 {
		return 0, fmt.Errorf("size %q is not accepted: whole MiB are, from %s on, such as \"8Gi\"", text, quantity(least))
	}
	return uint64(q.Value()), nil
}

// Taints of devices that should get no further claims now. NoSchedule does not affect running pods.
const (
	TaintUnreachable = "gpuslice.io/unreachable" // the enforcer does not answer
	TaintUnhealthy   = "gpuslice.io/unhealthy"   // a check of the enforcer fails for the device; its name is the taint's value
)

// DeviceName returns the name of a device in Kubernetes.
func DeviceName(uuid string) string { return strings.ToLower(uuid) }

const elasticPrefix = "elastic-"

// ElasticName returns the name of a card's device for elastic claims, which has its own capacity.
func ElasticName(uuid string) string { return elasticPrefix + DeviceName(uuid) }

// IsElastic reports whether name is that of a device for elastic claims.
func IsElastic(name string) bool { return strings.HasPrefix(name, elasticPrefix) }

// sizedName returns the name of a card's nth device of a size.
func sizedName(uuid string, size uint64, n int) string {
	return fmt.Sprintf("%s-%d-%s", strings.ToLower(quantity(size).String()), n, DeviceName(uuid))
}

// UUID returns the UUID of the card of the device with the given name.
func UUID(name string) string {
	name = name[max(0, strings.Index(name, "gpu-"), strings.Index(name, "mig-")):]
	kind, rest, _ := strings.Cut(name, "-")
	return strings.ToUpper(kind) + "-" + rest
}

// Names returns the names of all devices that may be published for a card.
func (o Offer) Names(d api.Device) []string {
	names := []string{DeviceName(d.UUID)}
	if d.Elastic != nil {
		names = append(names, ElasticName(d.UUID))
	}
	for _, size := range o.Sizes {
		for n := range int(d.Total / size) {
			names = append(names, sizedName(d.UUID, size, n))
		}
	}
	return names
}

// Host is the state of the host as reported by the enforcer. The parts are read at different times, so capacities use Devices
// alone: a pool created in between would be neither free nor a claim's.
type Host struct {
	Driver  string // version of NVIDIA's driver
	Devices []api.Device
	Pools   []api.Pool
	Health  api.Health
}

// Of returns the devices to publish for a host, the fullest first, since the scheduler takes the first that fits. With Elastic
// each card also has a device for elastic claims, the emptiest first, since containers that share a card take turns.
func (o Offer) Of(h Host) []resourceapi.Device {
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
		if has >= MinMemory {
			all = append(all, o.sized(h, d, entry(h, d, DeviceName(d.UUID), capacity(has, has, o.Default)))...)
		}
	}
	if !o.Elastic {
		return all
	}
	devices = slices.DeleteFunc(devices, func(d api.Device) bool { return d.Elastic == nil })
	slices.SortStableFunc(devices, func(a, b api.Device) int { return cmp.Compare(b.Elastic.Free, a.Elastic.Free) })
	for _, d := range devices {
		has := d.Elastic.Free + claimed(d.Elastic.Pools)
		if most := min(has, d.Elastic.Most); most >= MinMemory {
			all = append(all, entry(h, d, ElasticName(d.UUID), capacity(has, most, o.Default)))
		}
	}
	return all
}

// sized returns a card's device and its devices of fixed sizes. A counter has the scheduler use the card for the one kind or the
// other, and never for more than it has. The number of devices is constant: an allocation of one that is gone would not count.
func (o Offer) sized(h Host, d api.Device, card resourceapi.Device) []resourceapi.Device {
	if len(o.Sizes) == 0 {
		return []resourceapi.Device{card}
	}
	consumes := func(memory resource.Quantity) []resourceapi.DeviceCounterConsumption {
		return []resourceapi.DeviceCounterConsumption{{CounterSet: card.Name, Counters: map[string]resourceapi.Counter{Memory: {Value: memory}}}}
	}
	card.ConsumesCounters = consumes(card.Capacity[Memory].Value)
	all := []resourceapi.Device{card}
	for _, size := range o.Sizes {
		c := resourceapi.DeviceCapacity{Value: *quantity(size), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: quantity(size), ValidValues: []resource.Quantity{*quantity(size)},
		}}
		for n := range int(d.Total / size) {
			device := entry(h, d, sizedName(d.UUID, size, n), c)
			device.Attributes[Size] = resourceapi.DeviceAttribute{StringValue: ptr.To(c.Value.String())}
			device.ConsumesCounters = consumes(c.Value)
			all = append(all, device)
		}
	}
	return all
}

// entry returns a device of a card.
func entry(h Host, d api.Device, name string, memory resourceapi.DeviceCapacity) resourceapi.Device {
	device := resourceapi.Device{
		Name: name, AllowMultipleAllocations: ptr.To(true), Attributes: attributes(h.Driver, d),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{Memory: memory},
	}
	device.Attributes[Elastic] = resourceapi.DeviceAttribute{BoolValue: ptr.To(IsElastic(name))}
	if why := Unhealthy(h.Health, d); why != "" {
		check, _, _ := strings.Cut(why, ":")
		device.Taints = []resourceapi.DeviceTaint{{Key: TaintUnhealthy, Value: check, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return device
}

// coarse is the step in bytes to which varying amounts are rounded, to save writes.
const coarse = 256 << 20

// Outside returns the memory of programs outside slices above the reserve, in bytes.
func Outside(d api.Device) uint64 { return d.OutsideUsed - min(d.OutsideUsed, d.Reserve) }

// outside is Outside, rounded up.
func outside(d api.Device) uint64 { return (Outside(d) + coarse - 1) / coarse * coarse }

// capacity returns a total, a maximum per request, and the size of a request without one, in bytes; 0 is the maximum. The API
// server rejects a ResourceSlice with a bound above the value.
func capacity(bytes, most, without uint64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *quantity(bytes), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    quantity(min(cmp.Or(without, most), most)),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(MinMemory), Max: quantity(most), Step: quantity(step)},
	}}
}

// quantity returns bytes in steps of a mebibyte.
func quantity(bytes uint64) *resource.Quantity {
	return resource.NewQuantity(int64(bytes/step*step), resource.BinarySI)
}

func claimed(pools map[string]uint64) (bytes uint64) {
	for name, has := range pools {
		if strings.HasPrefix(name, PoolPrefix) {
			bytes += has
		}
	}
	return bytes
}

// Unhealthy returns the reason to give a device no further claims; "" if there is none. The enforcer is not ready, or NVML does not answer about the
// device. Where NVML only keeps silent about single processes, the memory in use is known.
func Unhealthy(h api.Health, d api.Device) string {
	for _, c := range h.Checks {
		if !c.OK && (c.Device == "" && c.For != "" || c.Device == d.UUID && d.Used == nil) {
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
	var counters []resourceapi.CounterSet
	for _, d := range devices {
		for _, c := range d.ConsumesCounters {
			if c.CounterSet == d.Name { // the card's device, which consumes all
				counters = append(counters, resourceapi.CounterSet{Name: c.CounterSet, Counters: c.Counters})
			}
		}
	}
	for part := range slices.Chunk(counters, resourceapi.ResourceSliceMaxCounterSets) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{SharedCounters: part})
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
