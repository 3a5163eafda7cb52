// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the promises that a user is given, on all of gpuslice at once: the programs in bin/, a
// real runc and real containers; only the driver is simulated. Each test has its own enforcer, its own simulated
// card and its own containers, and leaves nothing.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/client"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// patience is how long something may take that happens at once: machines that test are slow.
	patience = 20 * time.Second
)

// host is a private enforcer with a private simulated card.
type host struct {
	t       *testing.T
	dir     string
	bin     string
	runc    string
	client  *client.Client
	command *exec.Cmd
	log     lockedBuffer
}

// lockedBuffer may be written while it is read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newHost starts an enforcer, or skips the test and says what it lacks.
func newHost(t *testing.T) *host {
	t.Helper()
	t.Parallel() // each has a host of its own
	if os.Getuid() != 0 {
		t.Skip("needs root: containers and the enforcer of a host")
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: make deps")
	}
	h := &host{t: t, bin: binDir(t), runc: runc}
	// Not t.TempDir: a socket's address has 108 bytes.
	if h.dir, err = os.MkdirTemp("/tmp", "gpuslice-e2e-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(h.dir) })
	for _, name := range []string{"run", "state", "fake"} {
		h.must(os.Mkdir(filepath.Join(h.dir, name), 0o755))
	}
	text := fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\n\n[runtime]\nruntimes = [%q]\n",
		h.socket(), filepath.Join(h.dir, "run"), filepath.Join(h.dir, "state"), filepath.Join(h.bin, api.LibraryName), runc)
	h.must(os.WriteFile(h.config(), []byte(text), 0o644))
	h.client = client.New(h.socket())
	h.start()
	t.Cleanup(func() {
		h.stop(unix.SIGTERM)
		if t.Failed() {
			t.Logf("the enforcer said:\n%s", h.log.String())
		}
	})
	return h
}

func binDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpuslice", "gpusliced", "gpuslice-hook", "gpuslice-runtime", "libgpuslice.so", "fakecuda/libcuda.so.1", "demo/cuda_hog"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("needs bin/%s: make build", name)
		}
	}
	return dir
}

func (h *host) socket() string { return filepath.Join(h.dir, "run", "gpuslice.sock") }
func (h *host) config() string { return filepath.Join(h.dir, "config.toml") }

// env is the environment of the simulated driver and of our programs.
func (h *host) env() []string {
	return append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Join(h.bin, "fakecuda"),
		"FAKECUDA_STATE="+filepath.Join(h.dir, "fake", "state"),
		"GPUSLICE_CONFIG="+h.config())
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) start() {
	h.t.Helper()
	h.command = exec.Command(filepath.Join(h.bin, "gpusliced"), "--config", h.config())
	h.command.Env = h.env()
	h.command.Stdout, h.command.Stderr = &h.log, &h.log
	h.must(h.command.Start())
	h.eventually("the enforcer answers", func() bool {
		_, err := h.client.Info(h.t.Context())
		return err == nil
	})
}

func (h *host) stop(sig os.Signal) {
	if h.command == nil {
		return
	}
	_ = h.command.Process.Signal(sig)
	_ = h.command.Wait()
	h.command = nil
}

// eventually waits for what the kernel or the enforcer does by itself.
func (h *host) eventually(what string, is func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("after %v it is still not so that %s; slices: %+v", patience, what, h.slices())
		}
	}
}

func (h *host) slices() []api.Slice {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	slices, err := h.client.Slices(ctx)
	if err != nil {
		h.t.Logf("list the slices: %v", err)
	}
	return slices
}

// use of a slice on its only device.
func (h *host) use(id string) api.DeviceUse {
	h.t.Helper()
	slice, err := h.client.Slice(h.t.Context(), id)
	h.must(err)
	if len(slice.Devices) != 1 {
		h.t.Fatalf("slice %s has %d devices, want 1: %+v", id, len(slice.Devices), slice)
	}
	return slice.Devices[0]
}

func (h *host) holds(id string, bytes uint64) func() bool {
	return func() bool {
		slice, err := h.client.Slice(h.t.Context(), id)
		return err == nil && len(slice.Devices) == 1 && slice.Devices[0].Used == bytes
	}
}

func (h *host) isGone(id string) func() bool {
	return func() bool {
		_, err := h.client.Slice(h.t.Context(), id)
		return errors.Is(err, api.ErrNotFound)
	}
}

// container of a test.
type container struct {
	*host
	id     string
	bundle string
}

// newContainer writes a bundle whose root is made of the host's own directories, read-only.
func (h *host) newContainer(annotations map[string]string, args ...string) *container {
	h.t.Helper()
	return h.newContainerOf("/", h.bin, annotations, args...)
}

// newContainerOf writes one whose root is made of the directories of image, and whose simulated driver and demo are
// those in programs.
func (h *host) newContainerOf(image, programs string, annotations map[string]string, args ...string) *container {
	h.t.Helper()
	c := &container{host: h, id: fmt.Sprintf("gpuslice-e2e-%d-%d", os.Getpid(), time.Now().UnixNano())}
	c.bundle = filepath.Join(h.dir, c.id)
	rootfs := filepath.Join(c.bundle, "rootfs")
	for _, name := range []string{"proc", "dev", "etc", "tmp", "usr", "demo", "fakecuda", "fake"} {
		h.must(os.MkdirAll(filepath.Join(rootfs, name), 0o755))
	}
	type mount struct {
		Destination string   `json:"destination"`
		Source      string   `json:"source"`
		Type        string   `json:"type"`
		Options     []string `json:"options"`
	}
	bind := func(from, to, mode string) mount { return mount{to, from, "bind", []string{"rbind", mode}} }
	mounts := []mount{
		{"/proc", "proc", "proc", []string{}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		bind(filepath.Join(image, "usr"), "/usr", "ro"),
		bind(filepath.Join(programs, "demo"), "/demo", "ro"),
		bind(filepath.Join(programs, "fakecuda"), "/fakecuda", "ro"),
		bind(filepath.Join(h.dir, "fake"), "/fake", "rw"),
	}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		from := filepath.Join(image, name)
		info, err := os.Lstat(from)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			h.must(err)
			h.must(os.Symlink(target, rootfs+name))
		default:
			h.must(os.Mkdir(rootfs+name, 0o755))
			mounts = append(mounts, bind(from, name, "ro"))
		}
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": args, "noNewPrivileges": true,
			"env":          []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state"},
			"capabilities": object{"bounding": []string{}},
		},
		"root":        object{"path": "rootfs"},
		"annotations": annotations,
		"mounts":      mounts,
		"linux": object{
			"namespaces": []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
			"resources":  object{"devices": []object{{"allow": true, "access": "rwm"}}},
		},
	})
	h.must(err)
	h.must(os.WriteFile(filepath.Join(c.bundle, "config.json"), config, 0o644))
	h.t.Cleanup(func() { _ = c.runtime("delete", "--force", c.id).Run() })
	return c
}

func (c *container) runtime(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, "gpuslice-runtime"), append([]string{"--root", filepath.Join(c.dir, "runc")}, args...)...)
	cmd.Env = c.env()
	return cmd
}

// output runs cmd with its output in a file: the processes that it leaves in a container would keep a pipe
// open, and we would wait for them.
func (c *container) output(cmd *exec.Cmd) (string, error) {
	c.t.Helper()
	file, err := os.CreateTemp(c.dir, "output-")
	c.must(err)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	text, readErr := os.ReadFile(file.Name())
	c.must(readErr)
	return string(text), err
}

// run starts the container and leaves it running.
func (c *container) run() {
	c.t.Helper()
	if out, err := c.output(c.runtime("run", "--detach", "--bundle", c.bundle, c.id)); err != nil {
		c.t.Fatalf("run the container: %v\n%s", err, out)
	}
}

// pid is that of the container's init on the host.
func (c *container) pid() int {
	c.t.Helper()
	out, err := c.runtime("state", c.id).Output()
	c.must(err)
	var state struct{ Pid int }
	c.must(json.Unmarshal(out, &state))
	return state.Pid
}

func (c *container) exec(args ...string) (string, error) {
	c.t.Helper()
	return c.output(c.runtime(append([]string{"exec", c.id}, args...)...))
}

// hog is a process that holds memory, or was refused it.
type hog struct {
	said string // its one line
	pid  int    // on the host
}

func (g hog) holds(bytes, total uint64) bool {
	return g.said == fmt.Sprintf("holds %d of %d", bytes, total)
}

func (g hog) refused() bool { return strings.HasSuffix(g.said, ": CUDA_ERROR_OUT_OF_MEMORY") }

// hog starts a process in the container that takes bytes of memory and keeps them.
func (c *container) hog(bytes uint64) hog {
	c.t.Helper()
	said, err := os.CreateTemp(c.dir, "hog-")
	c.must(err)
	defer said.Close()
	pidFile := said.Name() + ".pid"
	cmd := c.runtime("exec", "--detach", "--pid-file", pidFile, c.id, "/demo/cuda_hog", strconv.FormatUint(bytes, 10))
	cmd.Stdout, cmd.Stderr = said, said
	c.must(cmd.Run())
	text, err := os.ReadFile(pidFile)
	c.must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	c.must(err)
	var line string
	c.eventually("the process has said what it got", func() bool {
		text, err := os.ReadFile(said.Name())
		line = lastLine(string(text))
		return err == nil && line != ""
	})
	return hog{said: line, pid: pid}
}

// lastLine returns the last whole line.
func lastLine(text string) string {
	end := strings.LastIndexByte(text, '\n')
	if end < 0 {
		return ""
	}
	return text[strings.LastIndexByte(text[:end], '\n')+1 : end]
}

func (c *container) kill(g hog) {
	c.t.Helper()
	c.must(unix.Kill(g.pid, unix.SIGKILL))
}
