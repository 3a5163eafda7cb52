// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

type daemon struct {
	dir string
	cmd *exec.Cmd
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "control.sock") }

// startDaemon starts gpusliced with env's simulated driver and waits until it answers. more are lines of its configuration,
// starting in [enforcer].
func startDaemon(t *testing.T, env []string, more ...string) *daemon {
	t.Helper()
	needs.Root(t)
	dir := must.Get(os.MkdirTemp("/tmp", "gpuslice-"))(t) // a socket address is limited to 108 bytes
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemon{dir: dir}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\ngroup = \"\"\ncontext_overhead = \"8M\"\n",
		d.socket(), filepath.Join(dir, "run"), filepath.Join(dir, "state"), filepath.Join(bin(t), "libgpuslice.so"))
	text += strings.Join(more, "\n")
	must.Do(t, os.WriteFile(config, []byte(text), 0o600))
	log := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	d.cmd = exec.Command(filepath.Join(bin(t), "gpusliced"), "--config", config)
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = env, log, log
	must.Do(t, d.cmd.Start())
	t.Cleanup(func() {
		d.kill()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the enforcer said:\n%s", text)
		}
	})
	await.That(t, "the enforcer answers", func() bool { return must.Err(client.New(d.socket()).Info(t.Context())) == nil })
	return d
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// start runs a command in a slice and returns its output. The command, its children and `gpuslice run` form one process group,
// which is killed with the test, or at once if the command fails and leaves children.
func (d *daemon) start(t *testing.T, env []string, vram string, command ...string) (cmd *exec.Cmd, lines *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(filepath.Join(bin(t), "gpuslice"),
		append([]string{"--socket", d.socket(), "run", "--quiet", "--vram", vram, "--", "sh", "-c", `"$@" || { kill -9 0; }`, "sh"}, command...)...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output := must.Get(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(output)
}

func lastOf(t *testing.T, lines *bufio.Scanner) (last string) {
	t.Helper()
	for lines.Scan() {
		last = lines.Text()
		t.Log(last)
	}
	return last
}

// machines are hosts with driver truth and without. A context is small, so that the contexts of exited processes free too little
// for a request that must be refused while the next process lives (kills.c).
var machines = map[string][]string{
	"with driver truth":    {"FAKECUDA_CONTEXT=8M"},
	"without driver truth": {"FAKECUDA_CONTEXT=8M", "FAKECUDA_NVML=fail"},
}

// The delay depends on the machine, so the test prints it without a check; the goal is a p99 of 10 ms.
func TestBytesOfAKilledProcessAreItsSiblings(t *testing.T) {
	count := "50"
	if os.Getenv("GPUSLICE_LONG") != "" {
		count = "150"
	}
	for name, more := range machines {
		t.Run(name, func(t *testing.T) {
			env := environment(t, more...)
			d := startDaemon(t, env)
			cmd, lines := d.start(t, env, "1G", compile(t, "kills"), count)
			last := lastOf(t, lines)
			if err := cmd.Wait(); err != nil || !strings.HasPrefix(last, count+" kills: ") {
				t.Fatalf("%v, %q", err, last)
			}
		})
	}
}

// I4: without an enforcer the slice's processes reclaim the memory of exited ones themselves.
func TestBytesOfAKilledProcessAreItsSiblingsWithoutAnEnforcer(t *testing.T) {
	for name, more := range machines {
		t.Run(name, func(t *testing.T) {
			env := environment(t, more...)
			d := startDaemon(t, env)
			flag := filepath.Join(d.dir, "dead")
			cmd, lines := d.start(t, env, "1G", compile(t, "kills"), "orphans", flag)
			if !lines.Scan() || lines.Text() != "ready" {
				t.Fatalf("its processes do not all hold what they should: %q", lines.Text())
			}
			d.kill()
			must.Do(t, os.WriteFile(flag, nil, 0o600))
			last := lastOf(t, lines)
			if err := cmd.Wait(); err != nil || !strings.HasPrefix(last, "8 kills: ") {
				t.Fatalf("%v, %q", err, last)
			}
		})
	}
}
