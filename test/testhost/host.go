// SPDX-License-Identifier: Apache-2.0

// Package testhost starts a private enforcer from the programs in bin/, on a private simulated card.
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
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// Patience bounds the wait for an event that is normally immediate.
const Patience = await.Patience

type Host struct {
	T      testing.TB
	Dir    string // temporary: "run" and "state" of the enforcer, "fake" of the simulated card
	Bin    string // directory of the project's programs
	Client *client.Client
	Log    Output // output of the enforcer

	env     []string // additional environment of the enforcer
	enter   []string // command prefix of the enforcer
	command *exec.Cmd
}

// Output is a buffer for concurrent use. The zero value is empty.
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

// Log writes to the test's log until the test ends, and discards later writes.
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
	t  testing.TB // nil once the test has ended
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// Options configures a host. The zero value selects the defaults.
type Options struct {
	Runtimes []string // runtime.runtimes; default: runc in PATH
	Runtime  string   // additional lines of section [runtime]
	Enforcer string   // additional lines of section [enforcer]
	Env      []string // additional environment of the enforcer
	Enter    []string // command prefix of the enforcer; must exec its arguments
}

// New starts an enforcer and stops it at the end of the test. It skips the test if a requirement is missing.
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
	// Not t.TempDir: a socket address is limited to 108 bytes.
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

// BinDir returns the absolute directory of the programs, or skips the test if one is missing.
func BinDir(t testing.TB) string {
	t.Helper()
	dir := must.Get(filepath.Abs("../../bin"))(t)
	for _, name := range []string{"gpuslice", "gpusliced", "gpuslice-hook", "gpuslice-runtime", "libgpuslice.so", "fakecuda/libcuda.so.1", "demo/cuda_hog"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("needs bin/%s: make test-programs", name)
		}
	}
	return dir
}

func (h *Host) Socket() string { return filepath.Join(h.Dir, "run", "gpuslice.sock") }

func (h *Host) Config() string { return filepath.Join(h.Dir, "config.toml") }

// Env returns the environment for the project's programs and the simulated driver.
func (h *Host) Env() []string {
	return append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Join(h.Bin, "fakecuda"),
		"FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "state"),
		"GPUSLICE_CONFIG="+h.Config())
}

// TopDirs creates the image's top-level directories in rootfs, as links if the image has links. It returns those to bind mount.
func TopDirs(image, rootfs string) (bound []string, err error) {
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		target, linkErr := os.Readlink(filepath.Join(image, name))
		switch {
		case errors.Is(linkErr, os.ErrNotExist):
		case linkErr == nil:
			err = errors.Join(err, os.Symlink(target, rootfs+name))
		default: // no link
			err = errors.Join(err, os.Mkdir(rootfs+name, 0o755))
			bound = append(bound, name)
		}
	}
	return bound, err
}

func (h *Host) Must(err error) {
	h.T.Helper()
	must.Do(h.T, err)
}

// Start starts the enforcer. New calls it; call it again after Stop.
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

// SetEnv replaces the enforcer's additional environment from the next Start on.
func (h *Host) SetEnv(env ...string) { h.env = env }

func (h *Host) Stop(sig os.Signal) {
	if h.command == nil {
		return
	}
	End(h.command, sig)
	h.command = nil
}

// End stops a daemon with a signal, and kills it after 30 s.
func End(daemon *exec.Cmd, sig os.Signal) {
	_ = daemon.Process.Signal(sig)
	late := time.AfterFunc(30*time.Second, func() { _ = daemon.Process.Kill() })
	_ = daemon.Wait()
	late.Stop()
}

// WhileStopped runs do while the enforcer is stopped by SIGSTOP. It continues the enforcer also if do ends the test.
func (h *Host) WhileStopped(do func()) {
	h.T.Helper()
	enforcer := h.command.Process
	h.Must(enforcer.Signal(unix.SIGSTOP))
	defer func() { _ = enforcer.Signal(unix.SIGCONT) }()
	do()
}

func (h *Host) Eventually(what string, is func() bool) {
	h.T.Helper()
	for deadline := time.Now().Add(Patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.T.Fatalf("after %v it is still not so that %s; slices: %+v", Patience, what, h.Slices())
		}
	}
}

func (h *Host) Slices() []api.Slice {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	slices, err := h.Client.Slices(ctx)
	if err != nil {
		h.T.Logf("list the slices: %v", err)
	}
	return slices
}

// Use returns the slice's usage of its only device.
func (h *Host) Use(id string) api.DeviceUse {
	h.T.Helper()
	slice := must.Get(h.Client.Slice(context.Background(), id))(h.T)
	if len(slice.Devices) != 1 {
		h.T.Fatalf("slice %s has %d devices, want 1: %+v", id, len(slice.Devices), slice)
	}
	return slice.Devices[0]
}

// Holds reports whether the slice uses exactly this many bytes of its only device.
func (h *Host) Holds(id string, bytes uint64) func() bool {
	return func() bool {
		slice, err := h.Client.Slice(context.Background(), id)
		return err == nil && len(slice.Devices) == 1 && slice.Devices[0].Used == bytes
	}
}

func (h *Host) IsGone(id string) func() bool {
	return func() bool {
		_, err := h.Client.Slice(context.Background(), id)
		return errors.Is(err, api.ErrNotFound)
	}
}
