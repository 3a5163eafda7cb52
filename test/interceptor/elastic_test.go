// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

func TestCallsOfAnElasticSlicePassTheGate(t *testing.T) {
	built := t.TempDir()
	driver := compileTo(t, filepath.Join(built, "libcuda.so.1"), "-shared", "-fPIC", "programs/tinydriver.c", "-Wl,-soname,libcuda.so.1",
		"-Wl,-Bsymbolic-functions")
	late := compileTo(t, filepath.Join(built, "late.so"), "-shared", "-fPIC", "programs/late.c", driver, "-Wl,-z,now")
	build := func(name string, args ...string) string {
		return compileTo(t, filepath.Join(built, name), append([]string{"programs/elastic.c", "programs/standin.c", "../../interceptor/ledger.c", driver,
			"-ldl", "-lpthread", "-Wl,--disable-new-dtags,-rpath," + built}, args...)...) // takes precedence over LD_LIBRARY_PATH
	}
	program, fixed := build("elastic"), build("fixed", "-fno-pie", "-no-pie", "-Wl,-z,lazy")
	cases := []string{"routes", "wait", "restart", "killed", "exit", "moves", "gone", "attach", "left", "used-up", "plain", "old-kernel"}
	if os.Getenv("AARCH64") == "" {
		cases = append(cases, "fork") // qemu-user does not support memory wiped at fork
	}
	run := func(name, program string) {
		t.Run(name, func(t *testing.T) {
			dir := must.Get(os.MkdirTemp("/tmp", "gpuslice-"))(t) // a socket address is limited to 108 bytes
			defer os.RemoveAll(dir)
			cmd := ordered(program, strings.TrimSuffix(name, " at a fixed address"), late)
			cmd.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"), "GPUSLICE_DIR="+dir)
			must.Output(cmd.CombinedOutput())(t)
		})
	}
	for _, name := range cases {
		run(name, program)
	}
	run("routes at a fixed address", fixed)
}

// ordered returns the command of a program that needs stores to be visible before later loads. Emulation only guarantees that on
// one processor: qemu-user 7.2 reordered a load before a sequentially consistent store 27 times in 300,000.
func ordered(program string, args ...string) *exec.Cmd {
	if os.Getenv("AARCH64") == "" {
		return exec.Command(program, args...)
	}
	return exec.Command("taskset", append([]string{"-c", "0", program}, args...)...)
}

func TestAProcessMovesItsMemoryItself(t *testing.T) {
	nvml := filepath.Join(bin(t), "fakecuda", "libnvidia-ml.so.1")
	program := compile(t, "mover", "programs/standin.c", "../../interceptor/ledger.c", nvml)
	for _, name := range []string{"there-and-back", "part", "again", "few", "nothing", "full", "contexts", "lend", "records", "released", "killed", "exit", "fork", "given", "given-fork",
		"own", "own-again", "own-full", "own-lent", "own-part", "own-fault", "own-rdma", "own-released", "own-killed", "own-fork"} {
		t.Run(name, func(t *testing.T) {
			dir := must.Get(os.MkdirTemp("/tmp", "gpuslice-"))(t) // a socket address is limited to 108 bytes
			defer os.RemoveAll(dir)
			cmd := ordered(program, name)
			cmd.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"), "GPUSLICE_DIR="+dir,
				"FAKECUDA_MEMORY=512M", "FAKECUDA_CONTEXT=64M", "FAKECUDA_VMM_FAULT="+filepath.Join(dir, "fault"))
			out := must.Output(cmd.CombinedOutput())(t)
			if name == "own-lent" && !strings.Contains(string(out), "memory used by a multicast object stays on the device") {
				t.Errorf("no message names the multicast object:\n%s", out)
			}
		})
	}
}
