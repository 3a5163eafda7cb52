// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// stranger starts a process outside all slices that holds 1 GiB of the card, and returns its pid.
func stranger(t *testing.T, env []string) int {
	t.Helper()
	c := exec.Command(filepath.Join(bin(t), "demo", "cuda_hog"), fmt.Sprint(gib))
	c.Env = env
	out := must.Get(c.StdoutPipe())(t)
	must.Start(t, c)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "holds ") {
		t.Fatalf("%v: %q", err, line)
	}
	return c.Process.Pid
}

func compileNVML(t *testing.T) string {
	t.Helper()
	return compileNVMLOf(t, "nvml")
}

func compileNVMLOf(t *testing.T, name string) string {
	t.Helper()
	return compile(t, name, filepath.Join(bin(t), "fakecuda", "libnvidia-ml.so.1"))
}

func run(t *testing.T, env []string, command ...string) string {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Env = env
	out := must.Output(c.CombinedOutput())(t)
	return string(out)
}

func TestNVMLAgreesWithCUDAAndListsTheSlicesProcessesOnly(t *testing.T) {
	program := compileNVML(t)
	for _, lists := range []string{"", "none"} {
		t.Run("lists="+lists, func(t *testing.T) {
			env := environment(t, "FAKECUDA_NVML_LISTS="+lists)
			must.Output(inSlice(t, env, "4G", program, "agree", fmt.Sprint(stranger(t, env))))(t)
		})
	}
}

// A program that never calls CUDA, such as nvidia-smi, sees the same.
func TestAProgramThatAsksNVMLAloneSeesTheSlice(t *testing.T) {
	program := compileNVML(t)
	env := environment(t)
	outside := run(t, env, program, "show")

	const figures = "total %d free %d used %d, v2 total %d reserved %d free %d used %d, processes, bytes\n"
	inside, err := inSlice(t, env, "4G", program, "show")
	if want := fmt.Sprintf(figures, 4*gib, 4*gib, 0, 4*gib, 0, 4*gib, 0); err != nil || inside != want {
		t.Errorf("%v: in a slice it sees %s, want %s", err, inside, want)
	}
	expect.Equal(t, must.Output(inSlice(t, env, "100%", program, "show"))(t), outside, "with the card as its quota it sees what it sees on the card")
	// Such a quota includes the driver's reserved memory, which no process can hold.
	if near, err := inSlice(t, env, "85420146688b", program, "show"); err != nil ||
		!strings.Contains(near, "v2 total 85420146688 reserved 402653184 free 85017493504 used 0") {
		t.Errorf("%v: with a quota of 96 MiB less than the card it sees %s", err, near)
	}
	if unlimited := run(t, env, filepath.Join(bin(t), "gpuslice"), "run", "--embedded", "--quiet", "--vram", "4G",
		"--mode", "record", "--", program, "show"); unlimited != outside {
		t.Errorf("in record mode it sees %s, on the card %s", unlimited, outside)
	}
}

func TestNVMLShowsWhoHoldsTheCardInRecordModeOnly(t *testing.T) {
	program := compileNVML(t)
	env := environment(t)
	pid := fmt.Sprintf("processes %d, bytes", stranger(t, env))
	expect.Contains(t, run(t, env, program, "show"), pid, "outside")
	expect.True(t, strings.HasSuffix(must.Output(inSlice(t, env, "4G", program, "show"))(t), "processes, bytes\n"), "in a slice it sees processes")
	out := run(t, env, filepath.Join(bin(t), "gpuslice"), "run", "--embedded", "--quiet", "--vram", "4G", "--mode", "record",
		"--", program, "show")
	expect.Contains(t, out, pid, "what it sees in record mode")
}

// If the quota is unknown, NVML shows the card with no free memory, as CUDA does.
func TestNVMLShowsNothingFreeWithoutASliceOrAQuota(t *testing.T) {
	program := compileNVML(t)
	env := environment(t, "FAKECUDA_DEVICES=2")
	stranger(t, env)
	const figures = "total 85520809984 free 0 used 85520809984, v2 total 85520809984 reserved 503316480 free 0 used 85017493504, processes, bytes\n"
	out := run(t, append(env, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so")), program, "show")
	if !strings.HasSuffix(out, figures) || strings.Count(out, "gpuslice: ") != 1 {
		t.Errorf("a process in no slice sees %s", out)
	}
	// Only device 1 has a quota; the program queries device 0.
	out = run(t, env, filepath.Join(bin(t), "gpuslice"), "run", "--embedded", "--quiet", "--vram", "4G", "--device", "1",
		"--", program, "show")
	expect.Equal(t, out, figures, "a process of a slice without a quota on the device sees")
}

// A process in its own pid namespace and the slice's other processes see each other.
func TestNVMLListsProcessesAcrossPIDNamespaces(t *testing.T) {
	needs.Root(t)
	program := compileNVML(t)
	env := environment(t)
	hog := filepath.Join(bin(t), "demo", "cuda_hog") + " " + fmt.Sprint(gib)
	// First the outer process holds 1 GiB, then one in a namespace; each lists processes once both hold it.
	script := `set -e
dir=` + t.TempDir() + `
` + hog + ` >$dir/outer & outer=$!
until grep -qs holds $dir/outer; do sleep 0.01; done
unshare --pid --fork --mount-proc sh -c '` + hog + ` >'$dir'/inner & inner=$!
until grep -qs holds '$dir'/inner; do sleep 0.01; done
echo "inner $inner: $(` + program + ` show)"
until [ -e '$dir'/seen ]; do sleep 0.01; done
kill $inner' & keeper=$!
until grep -qs holds $dir/inner; do sleep 0.01; done
echo "outer $outer: $(` + program + ` show)"
touch $dir/seen
wait $keeper
kill $outer`
	out := must.Output(must.Printed(sliced(t, env, "4G", "sh", "-c", script)))(t)
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var who string
		var pid int
		must.Do(t, must.Err(fmt.Sscanf(line, "%s %d:", &who, &pid)), line)
		_, list, _ := strings.Cut(line, "processes")
		list, _, _ = strings.Cut(list, ", bytes")
		if pids := strings.Fields(list); len(pids) != 2 || (pids[0] != fmt.Sprint(pid) && pids[1] != fmt.Sprint(pid)) {
			t.Errorf("the %s process's pid is %d, and two are to be listed: %s", who, pid, line)
		}
	}
	if strings.Count(out, "inner ") != 1 || strings.Count(out, "outer ") != 1 {
		t.Errorf("not both have looked:\n%s", out)
	}
}
