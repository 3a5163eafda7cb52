// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// A primary context is charged once for all threads that retain it, while it is active: even if others retain, release or reset
// it concurrently.
func TestThreadsRaceForThePrimaryContext(t *testing.T) {
	for _, nvml := range []string{"", "fail"} {
		t.Run("nvml="+nvml, func(t *testing.T) {
			env := environment(t, "FAKECUDA_NVML="+nvml, "FAKECUDA_CONTEXT=64M")
			daemon := startDaemon(t, env)
			cmd, lines := daemon.start(t, env, "2G", compile(t, "primary"), "8", "200")
			last := lastOf(t, lines)
			must.Do(t, cmd.Wait(), last)
		})
	}
}

// The driver decides which pool is current, so its answer must not be cached.
func TestAPoolBecomesCurrentWhileAnotherThreadAllocates(t *testing.T) {
	rounds := "5000"
	if os.Getenv("AARCH64") != "" {
		rounds = "300" // emulated, one round takes 25 ms
	}
	out, err := inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "2G", compile(t, "current"), rounds, "700")
	expect.NoError(t, err, out[:min(len(out), 2000)])
}

func TestThreadsThatLoadAndLaunchAtOnceAreChargedOnce(t *testing.T) {
	must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "4G", compile(t, "codethreads"), "8", "300"))(t)
}

// attachSocket creates a directory with a listener that replaces the enforcer. It calls `serve` in a goroutine for each
// connection, with its number from 0.
func attachSocket(t *testing.T, serve func(c *net.UnixConn, number int)) string {
	t.Helper()
	dir := t.TempDir()
	l := must.Get(net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "attach.sock"), Net: "unixpacket"}))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for number := 0; ; number++ {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c, number)
			}()
		}
	}()
	return dir
}

func TestAThreadCancelledInItsFirstCallHoldsUpNobody(t *testing.T) {
	hang := func(*net.UnixConn, int) { time.Sleep(60 * time.Second) }
	cases := []struct {
		name string
		dir  func(t *testing.T) string
	}{
		{"a hung enforcer", func(t *testing.T) string { return attachSocket(t, hang) }},
		{"one that hangs once", func(t *testing.T) string {
			return attachSocket(t, func(c *net.UnixConn, number int) {
				if number == 0 {
					hang(c, number)
				}
			})
		}},
		{"a slow one", func(t *testing.T) string {
			return attachSocket(t, func(*net.UnixConn, int) { time.Sleep(time.Second) })
		}},
		{"nobody listens", func(t *testing.T) string { return t.TempDir() }},
	}
	program := compile(t, "cancel")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program)
			cmd.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"), "GPUSLICE_DIR="+c.dir(t))
			must.Output(cmd.CombinedOutput())(t)
		})
	}
}

func TestASignalIsNotTakenForADeadEnforcer(t *testing.T) {
	out, err := inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "1G", compile(t, "signals"), "40")
	if err != nil || strings.Contains(out, "gpuslice: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestARefusalReadsNoEnvironment(t *testing.T) {
	out, err := inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "1G", compile(t, "environ"), "3")
	expect.NoError(t, err, out[max(0, len(out)-2000):])
	expect.Contains(t, out, "gpuslice: ", "no refusal was explained")
}

func TestAnAllocatorThatUsesTheCardDoesNotDeadlock(t *testing.T) {
	out := must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=64M"), "8G", compile(t, "allocator")))(t)
	t.Log(out)
}
