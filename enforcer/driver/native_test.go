// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// limitedDevice returns what a test sets, and records the last call.
type limitedDevice struct {
	nvml.Device
	ret        nvml.Return
	soft, hard uint64
}

//nolint:staticcheck // the name is go-nvml's
func (d *limitedDevice) SetMemoryLimits_v1(_ string, soft, hard uint64) nvml.Return {
	d.soft, d.hard = soft, hard
	return d.ret
}

//nolint:staticcheck // the name is go-nvml's
func (d *limitedDevice) GetMemoryLimits_v1(string) (nvml.MemoryLimits_v1, nvml.Return) {
	return nvml.MemoryLimits_v1{SoftLimit: d.soft, HardLimit: d.hard}, d.ret
}

func TestNoLimitIsSetWithAReservation(t *testing.T) {
	d := &limitedDevice{soft: 1}
	n := newNVML(&fakeLibrary{}, everything)
	n.handles[uuid0] = d
	if err := n.Limit("/c", uuid0, 4<<30); err != nil || d.soft != 0 || d.hard != 4<<30 {
		t.Errorf("%+v, %v", d, err)
	}
	expect.Equal(t, must.Get(n.Limited("/c", uuid0))(t), 4<<30)
	if err := n.Unlimit("/c", uuid0); err != nil || d.soft != 0 || d.hard != NoLimit {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestEachErrorOfALimitHasAMeaning(t *testing.T) {
	d := &limitedDevice{}
	n := newNVML(&fakeLibrary{}, everything)
	n.handles[uuid0] = d
	for ret, want := range map[nvml.Return]error{
		nvml.ERROR_NOT_SUPPORTED:      ErrNoLimits,
		nvml.ERROR_FUNCTION_NOT_FOUND: ErrNoLimits,
		nvml.ERROR_NOT_FOUND:          ErrNoController,
		nvml.ERROR_OPERATING_SYSTEM:   ErrNoCgroup,
		nvml.ERROR_NO_PERMISSION:      nvml.ERROR_NO_PERMISSION,
		nvml.ERROR_INVALID_ARGUMENT:   nvml.ERROR_INVALID_ARGUMENT,
	} {
		d.ret = ret
		expect.ErrorIs(t, n.Limit("/c", uuid0, 1), want, ret)
		noLimit := ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_OPERATING_SYSTEM
		if err := n.Unlimit("/c", uuid0); noLimit != (err == nil) {
			t.Errorf("%v: taken away: %v", ret, err)
		}
	}
	d.ret = nvml.ERROR_NOT_FOUND
	expect.Equal(t, must.Get(n.Limited("/c", uuid0))(t), NoLimit)
}

// A call of a missing function ends the process.
func TestALibraryWithoutLimitsIsNotAskedForThem(t *testing.T) {
	n := newNVML(&fakeLibrary{}, func(s string) bool { return !strings.Contains(s, "MemoryLimits") })
	n.handles[uuid0] = nil
	_, err := n.Limited("/c", uuid0)
	for _, err := range []error{err, n.Limit("/c", uuid0, 1), n.Unlimit("/c", uuid0)} {
		expect.ErrorSays(t, err, ErrNoLimits, "R615")
	}
}

func TestTheSimulatedDriverHoldsACgroupToItsLimit(t *testing.T) {
	libraries, hog := simulated(t)
	needs.Root(t)
	if !under(t, libraries, "FAKECUDA_STATE="+filepath.Join(t.TempDir(), "machine"), "FAKECUDA_LIMITS=1", "FAKECUDA_MEMORY=8G", "FAKECUDA_CONTEXT=300M") {
		return
	}
	mount := testhost.UnifiedCgroups()
	if mount == "" {
		t.Skip("a unified cgroup hierarchy is needed")
	}
	cgroup := must.Get(os.MkdirTemp(mount, "gpuslice-driver-"))(t)
	defer os.Remove(cgroup)
	n := must.Get(Open())(t)
	defer n.Close()
	devices := must.Get(n.Devices())(t)
	uuid := devices[0].UUID
	expect.Equal(t, must.Get(n.Limited(cgroup, uuid))(t), NoLimit)
	must.Do(t, n.Limit(cgroup, uuid, 1<<30))
	expect.Equal(t, must.Get(n.Limited(cgroup, uuid))(t), 1<<30)
	cmd := exec.Command("sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup, hog, "1073741824")
	expect.Refused(cmd.CombinedOutput())(t, "CUDA_ERROR_OUT_OF_MEMORY")
	expect.ErrorIs(t, n.Limit(cgroup, uuid, 9<<30), nvml.ERROR_INVALID_ARGUMENT, "more than the device has")
	expect.NoError(t, n.Unlimit(cgroup, uuid))
	expect.NoError(t, n.Unlimit(cgroup+"-not", uuid))
	expect.ErrorIs(t, n.Limit(cgroup+"-not", uuid, 1), ErrNoCgroup)
}
