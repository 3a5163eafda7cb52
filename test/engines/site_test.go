//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// site is the environment of one engine: an enforcer, and the engine's daemons with their files below the enforcer's directory.
type site struct {
	*testhost.Host
	t            *testing.T // of the case
	row          *testing.T // of the engine
	engine       engine
	daemons      map[string]*daemon
	path         string // of daemons and commands: the engine's programs, ours, the machine's
	env          []string
	apart        *apart // namespace of daemons, commands and the enforcer; nil: the test's
	equippedSite *site  // see equipped; nil until first used
}

type daemon struct {
	name    string
	args    []string
	ready   func() error
	command *exec.Cmd
	log     testhost.Output
}

// newSite starts an enforcer and a row's engine. The engine may add options, such as a wrapped low-level runtime.
func newSite(t *testing.T, r row) *site {
	t.Helper()
	s := &site{t: t, row: t, engine: r.make(), daemons: map[string]*daemon{}}
	o := testhost.Options{Runtimes: []string{tool(t, "runc-1.4", "runc")}}
	if e, ok := s.engine.(interface {
		options(t testing.TB) testhost.Options
	}); ok {
		o = e.options(t)
	}
	if e, ok := s.engine.(interface{ needsOwnNamespace() bool }); ok && e.needsOwnNamespace() {
		s.apart = newApart(t)
		o.Enter = s.apart.enter()
	}
	s.Host = testhost.New(t, o)
	// All users in containers need access.
	s.Must(os.Chmod(s.Dir, 0o755))
	s.Must(os.Chmod(filepath.Join(s.Dir, "fake"), 0o777))
	s.path = s.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	s.env = []string{"GPUSLICE_CONFIG=" + s.Config(), "HOME=" + s.Dir, "XDG_RUNTIME_DIR=" + filepath.Join(s.Dir, "xdg")}
	s.Must(os.Mkdir(filepath.Join(s.Dir, "xdg"), 0o700))
	t.Cleanup(func() { s.of(t).sweep() })
	s.engine.up(s)
	return s
}

// of returns the site for one case. Cases of an engine run in sequence.
func (s *site) of(t *testing.T) *site {
	s.T, s.t = t, t
	return s
}

func (s *site) in(parts ...string) string { return filepath.Join(append([]string{s.Dir}, parts...)...) }

func (s *site) prepend(parts ...string) {
	s.path = filepath.Join(append([]string{tools}, parts...)...) + ":" + s.path
}

// command returns a command with only the site's environment.
func (s *site) command(name string, args ...string) *exec.Cmd {
	if !strings.Contains(name, "/") {
		for _, dir := range strings.Split(s.path, ":") {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode()&0o111 != 0 {
				name = filepath.Join(dir, name)
				break
			}
		}
	}
	cmd := exec.Command(name, args...)
	if s.apart != nil {
		words := append(s.apart.enter(), name)
		cmd = exec.Command(words[0], append(words[1:], args...)...)
	}
	cmd.Env = append([]string{"PATH=" + s.path}, s.env...)
	cmd.Dir = s.Dir
	return cmd
}

// output runs a command with its output in a file: processes that it leaves running would keep a pipe open. A command that hangs
// fails.
func (s *site) output(name string, args ...string) (string, error) {
	return s.finish(s.command(name, args...))
}

// outputOnTerminal is output on a terminal. script(1) does not work here: the signals of its child and of finish can merge, so
// it misses the child's exit.
func (s *site) outputOnTerminal(name string, args ...string) (string, error) {
	s.t.Helper()
	master, terminal, err := pty.Open()
	if err != nil {
		return "", err
	}
	defer master.Close()
	var shown bytes.Buffer
	read := make(chan struct{})
	go func() { _, _ = io.Copy(&shown, master); close(read) }() // until the last process closes the terminal
	cmd := s.command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	_, err = s.finish(cmd)
	terminal.Close()
	await.Value(s.t, "the terminal is closed", read)
	return shown.String(), err
}

func (s *site) finish(cmd *exec.Cmd) (string, error) {
	s.t.Helper()
	file, err := os.CreateTemp(s.in(), "output-")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = file, file
	}
	if err = cmd.Start(); err == nil {
		late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
		ended := make(chan struct{})
		if !s.isClient(cmd) {
			go wake(cmd.Process, ended)
		}
		err = cmd.Wait()
		close(ended)
		if !late.Stop() {
			err = fmt.Errorf("it hung: %w", err)
		}
	}
	text, readErr := os.ReadFile(file.Name())
	if err == nil {
		err = readErr
	}
	return string(text), err
}

// isClient reports whether a command is an engine's client, which passes signals on to a process in a container.
func (s *site) isClient(cmd *exec.Cmd) bool {
	words := cmd.Args
	if s.apart != nil {
		words = words[min(len(words), len(s.apart.enter())):]
	}
	return len(words) > 0 && slices.Contains([]string{"crictl", "ctr", "docker", "nerdctl", "podman"}, filepath.Base(words[0]))
}

// wake sends SIGCHLD each second until ended: runc 1.4 installs its signal handler in the background, so it misses the exit of a short exec and
// hangs.
func wake(runtime *os.Process, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Second):
			_ = runtime.Signal(unix.SIGCHLD)
		}
	}
}

func (s *site) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.output(name, args...)
	must.Do(s.t, err, name, args, out)
	return out
}

// daemon starts a daemon and stops it after the engine's cases. It is up when ready returns nil.
func (s *site) daemon(name string, ready func() error, args ...string) {
	s.t.Helper()
	d := &daemon{name: name, args: args, ready: ready}
	s.daemons[name] = d
	s.launch(d)
	t := s.t
	t.Cleanup(func() {
		d.stop(unix.SIGTERM)
		if t.Failed() {
			text := d.log.String()
			t.Logf("the end of what %s said:\n%s", name, text[max(0, len(text)-20000):])
		}
	})
}

func (s *site) launch(d *daemon) {
	s.t.Helper()
	d.command = s.command(d.args[0], d.args[1:]...)
	d.command.Stdout, d.command.Stderr = &d.log, &d.log
	d.command.WaitDelay = time.Second // shims hold its output open
	s.Must(d.command.Start())
	var err error
	deadline := time.Now().Add(2 * testhost.Patience)
	for err = d.ready(); err != nil; err = d.ready() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is not up: %v\n%s", d.name, err, d.log.String())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (d *daemon) stop(sig unix.Signal) {
	if d.command == nil {
		return
	}
	testhost.End(d.command, sig)
	d.command = nil
}

func (s *site) crash(name string) {
	s.t.Helper()
	d := s.daemons[name]
	d.stop(unix.SIGKILL)
	s.launch(d)
}

var names atomic.Uint64

func (s *site) run(c container) string {
	s.t.Helper()
	name, out, err := s.try(c)
	must.Do(s.t, err, "run a container", out)
	return name
}

// try is run for a container that may be rejected; out is the engine's output.
func (s *site) try(c container) (name, out string, err error) {
	s.t.Helper()
	if c.name == "" {
		c.name = "c" + strconv.FormatUint(names.Add(1), 10) + "-" + strconv.Itoa(os.Getpid())
	}
	s.t.Cleanup(func() { _, _ = s.engine.remove(c.name) })
	out, err = s.engine.run(c.complete(s))
	return c.name, out, err
}

func (s *site) remove(name string) {
	s.t.Helper()
	must.Output(s.engine.remove(name))(s.t, "remove", name)
}

func (s *site) id(name string) string { return s.engine.id(name) }

func (s *site) init(name string) int {
	s.t.Helper()
	slice := must.Get(s.Client.Slice(context.Background(), s.id(name)))(s.T)
	return slice.PID
}

func (s *site) exec(name string, args ...string) string {
	s.t.Helper()
	out, err := s.engine.exec(name, args...)
	// crun before 1.8.7 cannot join a user namespace until the container's process has called execve (containers/crun#1264).
	for end := time.Now().Add(await.Patience); err != nil && strings.Contains(out, "setns(pid=") && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		out, err = s.engine.exec(name, args...)
	}
	must.Do(s.t, err, "exec", args, "in", name, out)
	return out
}

func (s *site) becomesTrue(is func() bool) bool {
	for deadline := time.Now().Add(testhost.Patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
