// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// limitedDevice answers what a test says, and remembers what it was asked last.
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
	if got, err := n.Limited("/c", uuid0); err != nil || got != 4<<30 {
		t.Errorf("%d, %v", got, err)
	}
	if err := n.Unlimit("/c", uuid0); err != nil || d.soft != 0 || d.hard != NoLimit {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestWhatTheDriverAnswersToALimitHasAMeaning(t *testing.T) {
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
		if err := n.Limit("/c", uuid0, 1); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", ret, err, want)
		}
		gone := ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_OPERATING_SYSTEM
		if err := n.Unlimit("/c", uuid0); gone != (err == nil) {
			t.Errorf("%v: taken away: %v", ret, err)
		}
	}
	d.ret = nvml.ERROR_NOT_FOUND
	if got, err := n.Limited("/c", uuid0); err != nil || got != NoLimit {
		t.Errorf("%d, %v", got, err)
	}
}

// A function that the library does not have ends the process when it is called.
func TestALibraryWithoutLimitsIsNotAskedForThem(t *testing.T) {
	n := newNVML(&fakeLibrary{}, func(s string) bool { return !strings.Contains(s, "MemoryLimits") })
	n.handles[uuid0] = nil
	_, err := n.Limited("/c", uuid0)
	for _, err := range []error{err, n.Limit("/c", uuid0, 1), n.Unlimit("/c", uuid0)} {
		if !errors.Is(err, ErrNoLimits) || !strings.Contains(err.Error(), "R615") {
			t.Errorf("%v", err)
		}
	}
}

func TestTheSimulatedDriverHoldsACgroupToItsLimit(t *testing.T) {
	libraries, hog := simulated(t)
	needs.Root(t)
	if !under(t, libraries, "FAKECUDA_STATE="+filepath.Join(t.TempDir(), "machine"), "FAKECUDA_LIMITS=1", "FAKECUDA_MEMORY=8G", "FAKECUDA_CONTEXT=300M") {
		return
	}
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/unified"); err == nil {
		mount += "/unified"
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(mount, &fs); err != nil || fs.Type != 0x63677270 {
		t.Skip("a unified cgroup hierarchy is needed")
	}
	cgroup := must.Get(os.MkdirTemp(mount, "gpuslice-driver-"))(t)
	defer os.Remove(cgroup)
	n := must.Get(Open())(t)
	defer n.Close()
	devices := must.Get(n.Devices())(t)
	uuid := devices[0].UUID
	if got, err := n.Limited(cgroup, uuid); err != nil || got != NoLimit {
		t.Errorf("%d, %v", got, err)
	}
	must.Do(t, n.Limit(cgroup, uuid, 1<<30))
	if got, err := n.Limited(cgroup, uuid); err != nil || got != 1<<30 {
		t.Errorf("%d, %v", got, err)
	}
	cmd := exec.Command("sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup, hog, "1073741824")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("%v, %s", err, out)
	}
	if err := n.Limit(cgroup, uuid, 9<<30); !errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) {
		t.Errorf("more than the device has: %v", err)
	}
	must.Try(t, n.Unlimit(cgroup, uuid))
	must.Try(t, n.Unlimit(cgroup+"-not", uuid))
	if err := n.Limit(cgroup+"-not", uuid, 1); !errors.Is(err, ErrNoCgroup) {
		t.Error(err)
	}
}
