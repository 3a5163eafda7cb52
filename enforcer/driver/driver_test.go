// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// fakeLibrary and fakeDevice implement the calls that the tests need. Any other call panics.
type fakeLibrary struct {
	nvml.Interface
	devices []*fakeDevice
}

func (f *fakeLibrary) DeviceGetCount() (int, nvml.Return) { return len(f.devices), nvml.SUCCESS }

func (f *fakeLibrary) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if f.devices[i] == nil {
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	return f.devices[i], nvml.SUCCESS
}

type list struct {
	infos []nvml.ProcessInfo
	ret   nvml.Return
}

type fakeDevice struct {
	nvml.Device
	uuid, name             string
	mig                    bool
	minor                  int // -1: not reported
	instances              []*fakeDevice
	compute, graphics, mps list
	busy                   []nvml.ProcessUtilizationSample
	busyRet                nvml.Return
}

func (f *fakeDevice) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return f.busy, f.busyRet
}

func (f *fakeDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
}
func (f *fakeDevice) GetPowerUsage() (uint32, nvml.Return) { return 1, nvml.ERROR_NOT_SUPPORTED }
func (f *fakeDevice) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return 1, nvml.ERROR_NOT_SUPPORTED
}

func (f *fakeDevice) GetUUID() (string, nvml.Return) { return f.uuid, nvml.SUCCESS }
func (f *fakeDevice) GetMinorNumber() (int, nvml.Return) {
	if f.minor < 0 {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return f.minor, nvml.SUCCESS
}
func (f *fakeDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return nvml.PciInfo{Domain: 1, Bus: 0x3b, Device: uint32(f.minor)}, nvml.SUCCESS
}
func (f *fakeDevice) GetCudaComputeCapability() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS }
func (f *fakeDevice) GetName() (string, nvml.Return)                    { return f.name, nvml.SUCCESS }
func (f *fakeDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return nvml.Memory{Total: 80 << 30}, nvml.SUCCESS
}

func (f *fakeDevice) GetMigMode() (int, int, nvml.Return) {
	if f.instances == nil && !f.mig {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
}

func (f *fakeDevice) GetMaxMigDeviceCount() (int, nvml.Return) { return 7, nvml.SUCCESS }

func (f *fakeDevice) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if i >= len(f.instances) || f.instances[i] == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return f.instances[i], nvml.SUCCESS
}

func (f *fakeDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return f.compute.infos, f.compute.ret
}

func (f *fakeDevice) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return f.graphics.infos, f.graphics.ret
}

func (f *fakeDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return f.mps.infos, f.mps.ret
}

const (
	uuid0   = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	uuid1   = "GPU-10112233-4455-6677-8899-aabbccddeeff"
	uuidMIG = "MIG-20112233-4455-6677-8899-aabbccddeeff"
)

func everything(string) bool { return true }

func TestAUUIDIsTheSameInBothForms(t *testing.T) {
	u, err := ParseUUID(uuid0)
	want := [16]byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	if err != nil || u.Raw != want || u.MIG || u.String() != uuid0 {
		t.Errorf("got %+v, %v", u, err)
	}
	if u, err = ParseUUID(uuidMIG); err != nil || !u.MIG || u.String() != uuidMIG {
		t.Errorf("got %+v, %v", u, err)
	}
	for _, s := range []string{
		"", "GPU-", uuid0[4:], uuid0 + "0", uuid0[:39], "gpu" + uuid0[3:], strings.Replace(uuid0, "f", "g", 1),
		strings.ReplaceAll(uuid0, "-", "0"), "MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/3/0", "GPU-001122334455-6677-8899-aabbccddeeff-0",
	} {
		if u, err := ParseUUID(s); err == nil {
			t.Errorf("%q is %v", s, u)
		}
	}
}

func FuzzParseUUID(f *testing.F) {
	f.Add(uuid0)
	f.Add(uuidMIG)
	f.Fuzz(func(t *testing.T, s string) {
		if u, err := ParseUUID(s); err == nil && u.String() != strings.ToUpper(s[:4])+strings.ToLower(s[4:]) {
			t.Errorf("%q becomes %s", s, u)
		}
	})
}

func TestInMIGModeTheInstancesAreTheDevices(t *testing.T) {
	lib := &fakeLibrary{devices: []*fakeDevice{
		{uuid: uuid0, name: "NVIDIA H100"},
		{uuid: uuid1, name: "NVIDIA H100", instances: []*fakeDevice{nil, nil, {uuid: uuidMIG, name: "NVIDIA H100 MIG 1g.10gb"}}},
	}}
	devices := must.Get(newNVML(lib, everything).Devices())(t)
	must.Len(t, devices, 2)
	if d := devices[0]; d.UUID != uuid0 || d.Index != 0 || d.Parent != "" || d.Total != 80<<30 || d.Name != "NVIDIA H100" {
		t.Errorf("the GPU is %+v", d)
	}
	if d := devices[1]; d.UUID != uuidMIG || d.Index != -1 || d.Parent != uuid1 || d.Raw[0] != 0x20 {
		t.Errorf("the instance is %+v", d)
	}
	old := newNVML(lib, func(s string) bool { return s != "nvmlDeviceGetMigDeviceHandleByIndex" })
	if devices, err := old.Devices(); err != nil || len(devices) != 2 || devices[1].UUID != uuid1 {
		t.Errorf("with a driver from before MIG: %+v, %v", devices, err)
	}
}

func TestADeviceThatFellOffTheBusHidesNoOther(t *testing.T) {
	n := newNVML(&fakeLibrary{devices: []*fakeDevice{nil, {uuid: uuid1}}}, everything)
	devices, err := n.Devices()
	if err == nil || len(devices) != 1 || devices[0].UUID != uuid1 || devices[0].Index != 1 {
		t.Errorf("got %+v, %v", devices, err)
	}
	expect.NoError(t, must.Err(n.Processes(uuid1)), "the other's processes")
	expect.ErrorIs(t, must.Err(n.Processes(uuid0)), ErrNoDevice)
}

func info(pid uint32, bytes uint64) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: bytes}
}

func TestAProcessOnSeveralListsIsCountedOnce(t *testing.T) {
	d := &fakeDevice{
		uuid:     uuid0,
		compute:  list{infos: []nvml.ProcessInfo{info(1, 100), info(2, 200), info(4, Unknown), info(5, Unknown), info(6, 7)}},
		graphics: list{infos: []nvml.ProcessInfo{info(2, 150), info(3, 300), info(4, 40)}},
		mps:      list{infos: []nvml.ProcessInfo{info(2, 250), info(6, Unknown)}},
	}
	n := newNVML(&fakeLibrary{devices: []*fakeDevice{d}}, everything)
	got, err := n.Processes(uuid0)
	want := map[int]uint64{1: 100, 2: 250, 3: 300, 4: 40, 5: Unknown, 6: 7}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestAListThatTheDriverLacksIsNoError(t *testing.T) {
	d := &fakeDevice{
		uuid:     uuid0,
		compute:  list{infos: []nvml.ProcessInfo{info(1, 100)}},
		graphics: list{ret: nvml.ERROR_NOT_SUPPORTED},
		mps:      list{infos: []nvml.ProcessInfo{info(9, 9)}},
	}
	lib := &fakeLibrary{devices: []*fakeDevice{d}}
	n := newNVML(lib, func(s string) bool { return !strings.Contains(s, "MPS") })
	expect.True(t, maps.Equal(must.Get(n.Processes(uuid0))(t), map[int]uint64{1: 100}), "it is not counted once")
	// Without the compute list there is no driver truth, and an empty result would be wrong.
	n = newNVML(lib, func(s string) bool { return !strings.Contains(s, "Compute") })
	if got, err := n.Processes(uuid0); err == nil {
		t.Errorf("got %v", got)
	}
	d.graphics.ret = nvml.ERROR_GPU_IS_LOST
	if got, err := newNVML(lib, everything).Processes(uuid0); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestADeviceSaysItsPCIAddressAndComputeCapability(t *testing.T) {
	lib := &fakeLibrary{devices: []*fakeDevice{{uuid: uuid1, minor: 2, instances: []*fakeDevice{{uuid: uuidMIG, minor: -1}}}}}
	devices, err := newNVML(lib, everything).Devices()
	if err != nil || len(devices) != 1 || devices[0].PCI != "0001:3b:02.0" || devices[0].Capability != "9.0" {
		t.Errorf("%+v, %v", devices, err)
	}
	for _, missing := range []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCudaComputeCapability"} {
		devices, err := newNVML(lib, func(s string) bool { return s != missing }).Devices()
		if err != nil || len(devices) != 1 || (devices[0].PCI == "") == (devices[0].Capability == "") {
			t.Errorf("a library without %s: %+v, %v", missing, devices, err)
		}
	}
}

func TestAMIGInstanceHasTheMinorNumberOfItsGPU(t *testing.T) {
	lib := &fakeLibrary{devices: []*fakeDevice{
		{uuid: uuid0, minor: 3},
		{uuid: uuid1, minor: 2, instances: []*fakeDevice{{uuid: uuidMIG, minor: -1}}},
	}}
	minors := func(n *NVML) [2]int {
		devices := must.Get(n.Devices())(t)
		must.Len(t, devices, 2)
		return [2]int{devices[0].Minor, devices[1].Minor}
	}
	expect.Equal(t, minors(newNVML(lib, everything)), [2]int{3, 2}, "minor numbers")
	if got := minors(newNVML(lib, func(s string) bool { return s != "nvmlDeviceGetMinorNumber" })); got != [2]int{-1, -1} {
		t.Errorf("a library without the function: %v", got)
	}
	lib.devices[0].minor = -1
	expect.Equal(t, minors(newNVML(lib, everything)), [2]int{-1, 2}, "a device without a minor number")
}
