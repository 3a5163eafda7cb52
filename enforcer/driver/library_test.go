// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bufio"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// inside is set in a child process that a test starts with another library path: the dynamic linker reads it once.
const inside = "GPUSLICE_TEST_LIBRARY"

// under runs the calling test again in a child, with libraries as LD_LIBRARY_PATH. It returns true in the child.
func under(t *testing.T, libraries string, env ...string) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), inside+"=1", "LD_LIBRARY_PATH="+libraries), env...)
	must.Output(cmd.CombinedOutput())(t)
	return false
}

func simulated(t *testing.T) (libraries, hog string) {
	t.Helper()
	libraries = must.Get(filepath.Abs("../../bin/fakecuda"))(t)
	hog = filepath.Join(libraries, "../demo/cuda_hog")
	for _, file := range []string{filepath.Join(libraries, libraryName), filepath.Join(libraries, "libcuda.so.1"), hog} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("requires the simulated driver (make test-programs): %v", err)
		}
	}
	return libraries, hog
}

func TestNVMLReportsTheMemoryOfAProcess(t *testing.T) {
	libraries, hog := simulated(t)
	state := filepath.Join(t.TempDir(), "machine")
	if !under(t, libraries, "FAKECUDA_STATE="+state, "FAKECUDA_DEVICES=2", "FAKECUDA_MEMORY=8G", "FAKECUDA_CONTEXT=300M") {
		return
	}
	n := must.Get(Open())(t)
	defer n.Close()
	devices, err := n.Devices()
	if err != nil || len(devices) != 2 || devices[1].Index != 1 || devices[0].Total != 8<<30 || devices[0].Name == "" {
		t.Fatalf("got %+v, %v", devices, err)
	}
	expect.True(t, n.DriverVersion() != "", "no driver version")
	pid := runHog(t, hog)
	for i, want := range []uint64{1<<30 + 300<<20, 0} {
		held := must.Get(n.Processes(devices[i].UUID))(t)
		expect.Equal(t, held[pid], want, "device", i, "process", pid)
	}
}

func TestAMinorNumberIsNotAnIndex(t *testing.T) {
	libraries, _ := simulated(t)
	if !under(t, libraries, "FAKECUDA_STATE="+filepath.Join(t.TempDir(), "machine"), "FAKECUDA_DEVICES=3", "FAKECUDA_NVML_ORDER=reverse") {
		return
	}
	n := must.Get(Open())(t)
	defer n.Close()
	devices := must.Get(n.Devices())(t)
	must.Len(t, devices, 3)
	for i, d := range devices {
		if d.Index != i || d.Minor != 2-i {
			t.Errorf("device %d has index %d and minor number %d", i, d.Index, d.Minor)
		}
	}
}

// runHog starts a process that holds 1 GiB on the first device, and returns its pid.
func runHog(t *testing.T, hog string) int {
	t.Helper()
	cmd := exec.Command(hog, "1073741824")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Start(t, cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.HasPrefix(line, "holds") {
		t.Fatalf("the hog says %q, %v", line, err)
	}
	return cmd.Process.Pid
}

func TestRealDriverReportsTheSame(t *testing.T) {
	n, err := Open()
	if err != nil {
		t.Skipf("requires a GPU and its driver: %v", err)
	}
	defer n.Close()
	hog := must.Get(filepath.Abs("../../bin/demo/cuda_hog"))(t)
	if _, err := os.Stat(hog); err != nil {
		t.Skipf("requires the demo program (make test-programs): %v", err)
	}
	devices, err := n.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("got %+v, %v", devices, err)
	}
	t.Logf("driver %s: %+v", n.DriverVersion(), devices)
	pid := runHog(t, hog)
	held := must.Get(n.Processes(devices[0].UUID))(t)
	t.Logf("process %d: %v", pid, held)
	if bytes, ok := held[pid]; !ok || bytes == Unknown || bytes < 1<<30 || bytes > 3<<30 {
		t.Errorf("process %d holds %d bytes: %v", pid, bytes, held)
	}
}

// go-nvml binds lazily, so the first call of a missing function would end the process.
func TestALibraryThatLacksFunctionsIsRefusedAndHarmless(t *testing.T) {
	libraries := t.TempDir()
	if os.Getenv(inside) == "" {
		source := filepath.Join(libraries, "empty.c")
		must.Do(t, os.WriteFile(source, []byte("int nvmlInit_v2(void) { return 0; }\n"), 0o600))
		if out, err := exec.Command("cc", "-shared", "-o", filepath.Join(libraries, libraryName), source).CombinedOutput(); err != nil {
			t.Skipf("requires a C compiler: %v: %s", err, out)
		}
	}
	if !under(t, libraries) {
		return
	}
	n, err := Open()
	expect.ErrorSays(t, err, ErrNoNVML, "nvmlShutdown", n)
}

func TestWithoutTheLibraryTheErrorSaysWhatToDo(t *testing.T) {
	n, err := Open()
	if err == nil {
		n.Close()
		t.Skip("requires a host without a GPU's driver")
	}
	if !errors.Is(err, ErrNoNVML) || !strings.Contains(err.Error(), `nvml = "off"`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestUtilizationMayBeUnknown(t *testing.T) {
	sample := func(pid, at, sm uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: uint64(at), SmUtil: sm}
	}
	for _, c := range []struct {
		samples []nvml.ProcessUtilizationSample
		ret     nvml.Return
		want    map[int]uint32
		fails   bool
	}{
		{samples: []nvml.ProcessUtilizationSample{sample(7, 2, 40), sample(7, 1, 90), sample(8, 1, 3), sample(9, 0, 50), sample(10, 1, 4000)}, want: map[int]uint32{7: 40, 8: 3}},
		{ret: nvml.ERROR_NOT_FOUND, want: map[int]uint32{}},
		{ret: nvml.ERROR_NOT_SUPPORTED},
		{ret: nvml.ERROR_INVALID_ARGUMENT},
		{ret: nvml.ERROR_GPU_IS_LOST, fails: true},
	} {
		n := newNVML(&fakeLibrary{devices: []*fakeDevice{{uuid: uuid0, busy: c.samples, busyRet: c.ret}}}, everything)
		if got, err := n.Busy(uuid0, time.Now()); !maps.Equal(got, c.want) || (got == nil) != (c.want == nil) || (err != nil) != c.fails {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
	old := newNVML(&fakeLibrary{devices: []*fakeDevice{{uuid: uuid0}}}, func(symbol string) bool { return symbol != "nvmlDeviceGetProcessUtilization" })
	if got, err := old.Busy(uuid0, time.Now()); got != nil || err != nil {
		t.Errorf("an old library: %v, %v", got, err)
	}
}

func TestSimulatedDriverReportsUtilization(t *testing.T) {
	libraries, hog := simulated(t)
	state := filepath.Join(t.TempDir(), "machine")
	if !under(t, libraries, "FAKECUDA_STATE="+state, "FAKECUDA_DEVICES=2") {
		return
	}
	n := must.Get(Open())(t)
	defer n.Close()
	devices := must.Get(n.Devices())(t)
	pid := runHog(t, hog)
	for i, want := range []map[int]uint32{{pid: 1}, {}} {
		if got, err := n.Busy(devices[i].UUID, time.Now().Add(-time.Second)); err != nil || !maps.Equal(got, want) || got == nil {
			t.Errorf("device %d: %v, %v", i, got, err)
		}
		expect.Equal(t, n.Sensors(devices[i].UUID), Sensors{Reading{uint32(len(want)), true}, Reading{32, true}, Reading{71500, true}, Reading{700000, true}})
	}
	n.has = func(symbol string) bool { return symbol != "nvmlDeviceGetTemperature" }
	n.handles[uuid0] = &fakeDevice{}
	expect.Equal(t, n.Sensors(uuid0), Sensors{}, "a device that supports none")
}
