// SPDX-License-Identifier: Apache-2.0

package machinetest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// run compiles a program of testdata against the simulated driver, and runs it on the machine.
func (m *machine) run(name string) {
	m.t.Helper()
	program := filepath.Join(m.t.TempDir(), name)
	compile := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program,
		filepath.Join("testdata", name+".c"), "-L../../../bin/fakecuda", "-l:libcuda.so.1", "-ldl")
	must.Output(compile.CombinedOutput())(m.t, "cc", name)
	cmd := exec.Command(program)
	cmd.Env = m.env
	expect.Equal(m.t, string(must.Output(cmd.CombinedOutput())(m.t)), "", name)
}

func TestABindToAMulticastObjectHoldsMemory(t *testing.T) {
	newMachine(t, "FAKECUDA_DEVICES=2").run("multicast")
}

func TestSharedMemoryLivesAsLongAsWhatHoldsIt(t *testing.T) {
	newMachine(t).run("share")
}
