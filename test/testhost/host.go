// SPDX-License-Identifier: Apache-2.0

// Package testhost gives a test a host of its own: a private enforcer, of the programs in bin/, with a private simulated card. What
// the test does with it, and with which container engine, is its own affair.
package testhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/needs"
)

// Patience is how long something may take that happens at once: machines that test are slow.
const Patience = await.Patience

// Host is a private enforcer with a private simulated card.
type Host struct {
	T      testing.TB
	Dir    string // of its own, below /tmp: "run" and "state" are the enforcer's, "fake" is the simulated card's
	Bin    string // the project's programs
	Client *client.Client
	Log    Output // what the enforcer said

	env     []string // more of the enforcer's
	enter   []string // words that start it, before its own
	command *exec.Cmd
}

// Output may be written while it is read. Its zero value is empty.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Log is the log of a test. What is still said after the test's end is nobody's: a test must not be told anything then.
func Log(t testing.TB) io.Writer {
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t = nil
	})
	return l
}

type testLog struct {
	mu sync.Mutex
	t  testing.TB // nil at its end
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// Options of a host. Empty ones are the defaults.
type Options struct {
	Runtimes []string // as in the configuration; runc in PATH
	Runtime  string   // more lines of the configuration's [runtime]
	Enforcer string   // more lines of its [enforcer]
	Env      []string // more of the enforcer's environment
	Enter    []string // words that start the enforcer, before its own: a program that becomes it
}

// New starts an enforcer, or skips the test and says what it lacks. The test's end stops it.
func New(t testing.TB, o Options) *Host {
	t.Helper()
	needs.Root(t)
	if len(o.Runtimes) == 0 {
		runc, err := exec.LookPath("runc")
		if err != nil {
			t.Skip("needs runc: make deps")
		}
		o.Runtimes = []string{runc}
	}
	h := &Host{T: t, Bin: BinDir(t), env: o.Env, enter: o.Enter}
	// Not t.TempDir: a socket's address has 108 bytes.
	var err error
	if h.Dir, err = os.MkdirTemp("/tmp", "gpuslice-test-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(h.Dir) })
	for _, name := range []string{"run", "state", "fake"} {
		h.Must(os.Mkdir(filepath.Join(h.Dir, name), 0o755))
	}
	var runtimes []string
	for _, r := range o.Runtimes {
		runtimes = append(runtimes, fmt.Sprintf("%q", r))
	}
	text := fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\n%s\n[runtime]\nruntimes = [%s]\n%s\n",
		h.Socket(), filepath.Join(h.Dir, "run"), filepath.Join(h.Dir, "state"), filepath.Join(h.Bin, api.LibraryName), o.Enforcer,
		strings.Join(runtimes, ", "), o.Runtime)
	h.Must(os.WriteFile(h.Config(), []byte(text), 0o644))
	h.Client = client.New(h.Socket())
	h.Start()
	t.Cleanup(func() {
		h.Stop(unix.SIGTERM)
		if t.Failed() {
			text := h.Log.String()
			t.Logf("the end of what the enforcer said:\n%s", text[max(0, len(text)-10000):])
		}
	})
	return h
}

// BinDir is where the programs are, absolute; without them the test is skipped.
func BinDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpuslice", "gpusliced", "gpuslice-hook", "gpuslice-runtime", "libgpuslice.so", "fakecuda/libcuda.so.1", "demo/cuda_hog"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("needs bin/%s: make test-programs", name)
		}
	}
	return dir
}

// Socket is the enforcer's control socket.
func (h *Host) Socket() string { return filepath.Join(h.Dir, "run", "gpuslice.sock") }

// Config is the configuration file.
func (h *Host) Config() string { return filepath.Join(h.Dir, "config.toml") }

// Env is the environment of the simulated driver and of our programs.
func (h *Host) Env() []string {
	return append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Join(h.Bin, "fakecuda"),
		"FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "state"),
		"GPUSLICE_CONFIG="+h.Config())
}

// TopDirs are the directories of an image, beside /usr, that a container with this root needs: it returns those to be bound there, which it
// makes, and makes the links that lead into /usr.
func (h *Host) TopDirs(image, rootfs string) (bound []string) {
	h.T.Helper()
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		info, err := os.Lstat(filepath.Join(image, name))
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(filepath.Join(image, name))
			h.Must(err)
			h.Must(os.Symlink(target, rootfs+name))
		default:
			h.Must(os.Mkdir(rootfs+name, 0o755))
			bound = append(bound, name)
		}
	}
	return bound
}

// Must ends the test at an error of its own making.
func (h *Host) Must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// Start starts the enforcer, which New did, again after a Stop.
func (h *Host) Start() {
	h.T.Helper()
	words := append(h.enter[:len(h.enter):len(h.enter)], filepath.Join(h.Bin, "gpusliced"), "--config", h.Config())
	h.command = exec.Command(words[0], words[1:]...)
	h.command.Env = append(h.Env(), h.env...)
	h.command.Stdout, h.command.Stderr = &h.Log, &h.Log
	h.Must(h.command.Start())
	h.Eventually("the enforcer answers", func() bool {
		_, err := h.Client.Info(context.Background())
		return err == nil
	})
}

// SetEnv changes what more the enforcer has in its environment, from the next Start on.
func (h *Host) SetEnv(env ...string) { h.env = env }

// Stop ends the enforcer by a signal.
func (h *Host) Stop(sig os.Signal) {
	if h.command == nil {
		return
	}
	End(h.command, sig)
	h.command = nil
}

// End ends a daemon by a signal, and by SIGKILL if that takes longer than any daemon may.
func End(daemon *exec.Cmd, sig os.Signal) {
	_ = daemon.Process.Signal(sig)
	late := time.AfterFunc(30*time.Second, func() { _ = daemon.Process.Kill() })
	_ = daemon.Wait()
	late.Stop()
}

// Signal sends the enforcer one that it does not end by.
func (h *Host) Signal(sig os.Signal) {
	h.T.Helper()
	h.Must(h.command.Process.Signal(sig))
}

// Eventually waits for what the kernel or the enforcer does by itself.
func (h *Host) Eventually(what string, is func() bool) {
	h.T.Helper()
	for deadline := time.Now().Add(Patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.T.Fatalf("after %v it is still not so that %s; slices: %+v", Patience, what, h.Slices())
		}
	}
}

// Slices are all that the enforcer has.
func (h *Host) Slices() []api.Slice {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	slices, err := h.Client.Slices(ctx)
	if err != nil {
		h.T.Logf("list the slices: %v", err)
	}
	return slices
}

// Use of a slice on its only device.
func (h *Host) Use(id string) api.DeviceUse {
	h.T.Helper()
	slice, err := h.Client.Slice(context.Background(), id)
	h.Must(err)
	if len(slice.Devices) != 1 {
		h.T.Fatalf("slice %s has %d devices, want 1: %+v", id, len(slice.Devices), slice)
	}
	return slice.Devices[0]
}

// Holds says whether a slice uses so many bytes of its only device.
func (h *Host) Holds(id string, bytes uint64) func() bool {
	return func() bool {
		slice, err := h.Client.Slice(context.Background(), id)
		return err == nil && len(slice.Devices) == 1 && slice.Devices[0].Used == bytes
	}
}

// IsGone says whether there is no slice of that id.
func (h *Host) IsGone(id string) func() bool {
	return func() bool {
		_, err := h.Client.Slice(context.Background(), id)
		return errors.Is(err, api.ErrNotFound)
	}
}
