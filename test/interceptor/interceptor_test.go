// SPDX-License-Identifier: Apache-2.0

// Package interceptor tests libgpuslice.so with real processes in a slice of `gpuslice run`, which link or load the simulated
// driver.
package interceptor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

func bin(t *testing.T) string {
	t.Helper()
	dir := must.Get(filepath.Abs("../../bin"))(t)
	must.Do(t, must.Err(os.Stat(filepath.Join(dir, "libgpuslice.so"))), "run `make test-programs` first")
	return dir
}

func sources(t *testing.T, name string) []string {
	t.Helper()
	more := must.Get(filepath.Glob(filepath.Join("programs", name+"_*.c")))(t)
	return append([]string{filepath.Join("programs", name+".c")}, more...)
}

func compile(t *testing.T, name string, libraries ...string) string {
	t.Helper()
	return compileFor(t, "fakecuda", name, libraries...)
}

// compileFor is compile for the simulated driver in a directory of bin; the program can only call that driver's functions.
func compileFor(t *testing.T, driverDir, name string, libraries ...string) string {
	t.Helper()
	args := append(sources(t, name), filepath.Join(bin(t), driverDir, "libcuda.so.1"), "-ldl", "-lpthread")
	return compileTo(t, filepath.Join(t.TempDir(), name), append(args, libraries...)...)
}

func compileTo(t *testing.T, output string, args ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	args = append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I../../interceptor",
		"-o", output}, args...)
	must.Output(exec.Command(cc, args...).CombinedOutput())(t)
	return output
}

func environment(t *testing.T, more ...string) []string {
	t.Helper()
	return append(append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Join(bin(t), "fakecuda"),
		"FAKECUDA_STATE="+filepath.Join(t.TempDir(), "card")), more...)
}

func sliced(t *testing.T, env []string, vram string, command ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"run", "--embedded", "--quiet", "--vram", vram, "--"}, command...)
	c := exec.Command(filepath.Join(bin(t), "gpuslice"), args...)
	c.Env = env
	return c
}

// inSlice returns both outputs of a command in a slice.
func inSlice(t *testing.T, env []string, vram string, command ...string) (string, error) {
	t.Helper()
	out, err := sliced(t, env, vram, command...).CombinedOutput()
	return string(out), err
}

func TestEveryRouteToTheDriverLeadsToTheInterceptor(t *testing.T) {
	must.Output(inSlice(t, environment(t), "4G", compile(t, "routes")))(t)
}

func TestEveryKindOfMemoryIsChargedRefusedAndGivenBack(t *testing.T) {
	for _, nvml := range []string{"", "fail"} {
		t.Run("nvml="+nvml, func(t *testing.T) {
			env := environment(t, "FAKECUDA_NVML="+nvml, "FAKECUDA_CONTEXT=64M")
			must.Output(inSlice(t, env, "4G", compile(t, "accounting")))(t)
		})
	}
}

// The card has less than the quota, as if others held the rest.
func TestWhatTheDriverRefusesIsNotCharged(t *testing.T) {
	env := environment(t, "FAKECUDA_CONTEXT=64M", "FAKECUDA_MEMORY=1G", "FAKECUDA_RESERVED=512M")
	must.Output(inSlice(t, env, "1G", compile(t, "starved")))(t)
}

// Driver truth is sampled fifty times as often as by default.
func TestAProcessThatNeverStandsStillIsChargedExactly(t *testing.T) {
	seconds := "6"
	if os.Getenv("GPUSLICE_LONG") != "" {
		seconds = "20"
	}
	env := environment(t, "FAKECUDA_CONTEXT=64M")
	// The default settle_time: on a loaded machine a call may take longer than some tenths of a second.
	cmd, lines := startDaemon(t, env, `truth_interval = "20ms"`).start(t, env, "1G", compile(t, "small"), seconds)
	last := lastOf(t, lines)
	must.Do(t, cmd.Wait(), last)
}

func TestManyProcessesRaceForTheLastByte(t *testing.T) {
	seconds, processes, limit := 6, "24", 14<<10
	if os.Getenv("GPUSLICE_LONG") != "" {
		seconds, processes, limit = 12, "64", 36<<10
	}
	cases := []struct {
		name, nvml, context string
		limit               int // MiB
	}{
		// Without driver truth a context is charged as configured: 512 MiB.
		{"without driver truth", "fail", "512M", limit},
		{"with driver truth", "", "8M", 1536},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			env := environment(t, "FAKECUDA_DEVICES=2", "FAKECUDA_CONTEXT="+c.context, "FAKECUDA_NVML="+c.nvml)
			out := must.Output(inSlice(t, env, fmt.Sprintf("%dM", c.limit), compile(t, "race"), fmt.Sprint(seconds), processes, "4", fmt.Sprint(c.limit*mib), "1"))(t)
			t.Log(out)
		})
	}
}

func TestThreadsOfOneProcessShareItsLane(t *testing.T) {
	must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "2G", compile(t, "threads"), "16", "20000"))(t)
}

func TestThreadsThatTakeMemoryAtOnceFromOnePoolStayWithinTheQuota(t *testing.T) {
	program := compile(t, "crowd")
	for _, mode := range []string{"async", "busy", "graph"} {
		for _, threads := range []string{"2", "4", "16"} {
			t.Run(mode+" "+threads, func(t *testing.T) {
				env := environment(t, "FAKECUDA_CONTEXT=64M")
				if mode == "busy" {
					env = append(env, "FAKECUDA_TRIM=waited")
				}
				out := must.Output(inSlice(t, env, "4G", program, mode, threads, "30", "1024"))(t)
				t.Log(out)
			})
		}
	}
}

func TestAGrowthThatAnotherCallSeesIsUndoneByItsOwn(t *testing.T) {
	must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "4G", compile(t, "undone", "-rdynamic")))(t)
}

func TestAForkedChildBeginsAnew(t *testing.T) {
	program := compile(t, "fork", "-rdynamic")
	for _, kernel := range []string{"", "OLD_KERNEL=1"} {
		must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M", kernel), "2G", program))(t, kernel)
	}
}

// A preloaded process that cannot attach is granted no memory and logs the reason once. It neither crashes nor hangs (I5).
func TestWithoutAnEnforcerNothingIsGranted(t *testing.T) {
	program := compile(t, "closed")
	start := func(t *testing.T, dir string) (string, error) {
		c := exec.Command(program)
		c.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"))
		if dir != "" {
			c.Env = append(c.Env, "GPUSLICE_DIR="+dir)
		}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	reply := func(status uint16, lane uint32, size uint64) []byte {
		var b bytes.Buffer
		for _, v := range []any{uint32(0x31415347), uint16(3), status, lane, uint32(0), uint64(0), size, [4]uint64{}} {
			must.Do(t, binary.Write(&b, binary.NativeEndian, v))
		}
		return b.Bytes()
	}
	send := func(t *testing.T, message []byte) string {
		return attachSocket(t, func(c *net.UnixConn, _ int) {
			question := make([]byte, 256)
			if _, err := c.Read(question); err == nil {
				_, _ = c.Write(message) // the peer may be gone
			}
		})
	}

	cases := []struct {
		name string
		dir  func(t *testing.T) string
		says string
	}{
		{"in no slice", func(*testing.T) string { return "" }, "in no slice"},
		{"a path that is not absolute", func(*testing.T) string { return "relative" }, "in no slice"},
		{"a path that is too long", func(*testing.T) string { return "/" + strings.Repeat("x", 200) }, "in no slice"},
		{"nobody listens", func(t *testing.T) string { return t.TempDir() }, "does not answer"},
		{"a hung enforcer", func(t *testing.T) string {
			return attachSocket(t, func(*net.UnixConn, int) { time.Sleep(30 * time.Second) })
		}, "does not answer"},
		{"garbage", func(t *testing.T) string { return send(t, []byte("garbage")) }, "is not the enforcer"},
		{"garbage of the right size", func(t *testing.T) string {
			return send(t, bytes.Repeat([]byte{0xff}, 64))
		}, "is not the enforcer"},
		{"too long an answer", func(t *testing.T) string {
			return send(t, append(reply(2, 0, 0), 0))
		}, "is not the enforcer"},
		{"too short an answer", func(t *testing.T) string {
			return send(t, reply(2, 0, 0)[:63])
		}, "is not the enforcer"},
		{"yes without a ledger", func(t *testing.T) string { return send(t, reply(0, 1, 4464640)) }, "is not the enforcer"},
		{"not a member", func(t *testing.T) string { return send(t, reply(1, 0, 0)) }, "does not belong to this slice"},
		{"full", func(t *testing.T) string { return send(t, reply(2, 0, 0)) }, "no free process slot"},
		{"released", func(t *testing.T) string { return send(t, reply(3, 0, 0)) }, "was released"},
		{"an internal error", func(t *testing.T) string { return send(t, reply(7, 0, 0)) }, "code 7"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := must.Output(start(t, c.dir(t)))(t)
			if n := strings.Count(out, "gpuslice: "); n != 1 || !strings.Contains(out, c.says) {
				t.Fatalf("%d messages, want one with %q:\n%s", n, c.says, out)
			}
		})
	}
}

func TestAttachWaitsForAnEnforcerThatIsRestarted(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command(compile(t, "closed"))
	c.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"), "GPUSLICE_DIR="+dir)
	path := filepath.Join(dir, "attach.sock")
	stale := must.Get(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
	stale.SetUnlinkOnClose(false)
	stale.Close() // the socket of a dead enforcer

	asked := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() {
		_ = os.Remove(path)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			asked <- err
			return
		}
		defer l.Close()
		_ = l.SetDeadline(time.Now().Add(await.Patience))
		conn, err := l.AcceptUnix()
		if err == nil {
			conn.Close()
		}
		asked <- err
	})
	out, err := c.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	must.Do(t, <-asked, "the new enforcer was never asked", out)
}
