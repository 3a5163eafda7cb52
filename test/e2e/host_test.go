// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the promises to users with the programs in bin/, a real runc and real containers. Only the driver is
// simulated. Each test has its own enforcer, card and containers, and leaves nothing behind.
package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/testhost"

	"github.com/gpuslice/gpuslice/test/must"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

type host struct {
	*testhost.Host
	runc string
}

func newHost(t *testing.T) *host {
	t.Helper()
	return newHostBy(t, api.Intercept, "")
}

func runcPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: make deps")
	}
	return path
}

// newHostBy appends lines to the configuration, and adds variables to the enforcer's environment.
func newHostBy(t *testing.T, enforcement api.Enforcement, lines string, env ...string) *host {
	t.Helper()
	t.Parallel()
	runc := runcPath(t)
	options := testhost.Options{
		Runtimes: []string{runc}, Enforcer: fmt.Sprintf("enforcement = %q\n", enforcement), Runtime: lines, Env: env,
	}
	if enforcement == api.Native {
		options.Env = append(options.Env, "FAKECUDA_LIMITS=1")
	}
	return &host{testhost.New(t, options), runc}
}

// dies waits until the enforcer has died at its kill point, and starts the next one with other variables.
func (h *host) dies(env ...string) {
	h.T.Helper()
	h.Eventually("the enforcer is dead", func() bool {
		_, err := h.Client.Info(h.T.Context())
		return err != nil
	})
	h.Stop(unix.SIGKILL)
	h.SetEnv(env...)
	h.Start()
}

type container struct {
	*host
	id     string
	bundle string
}

// newContainer writes a bundle with the host's directories as a read-only root.
func (h *host) newContainer(annotations map[string]string, args ...string) *container {
	h.T.Helper()
	return h.newContainerOf("/", h.Bin, annotations, args...)
}

// runContainer makes a container and runs it.
func (h *host) runContainer(annotations map[string]string, args ...string) *container {
	h.T.Helper()
	c := h.newContainer(annotations, args...)
	c.run()
	return c
}

// newContainerOf writes a bundle with the directories of image, and the simulated driver and demo from programs.
func (h *host) newContainerOf(image, programs string, annotations map[string]string, args ...string) *container {
	h.T.Helper()
	c := &container{host: h, id: fmt.Sprintf("gpuslice-e2e-%d-%d", os.Getpid(), time.Now().UnixNano())}
	c.bundle = filepath.Join(h.Dir, c.id)
	rootfs := filepath.Join(c.bundle, "rootfs")
	for _, name := range []string{"proc", "dev", "etc", "tmp", "usr", "demo", "fakecuda", "fake"} {
		h.Must(os.MkdirAll(filepath.Join(rootfs, name), 0o755))
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
		bind(filepath.Join(h.Dir, "fake"), "/fake", "rw"),
	}
	for _, name := range must.Get(testhost.TopDirs(image, rootfs))(h.T) {
		mounts = append(mounts, bind(filepath.Join(image, name), name, "ro"))
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
	h.Must(err)
	h.Must(os.WriteFile(filepath.Join(c.bundle, "config.json"), config, 0o644))
	h.T.Cleanup(func() { _ = c.runtime("delete", "--force", c.id).Run() })
	return c
}

// grant replaces the capabilities of the container's root; the default is none.
func (c *container) grant(capabilities ...string) {
	c.T.Helper()
	c.configure(func(config map[string]any) {
		config["process"].(map[string]any)["capabilities"] = map[string][]string{
			"bounding": capabilities, "effective": capabilities, "permitted": capabilities,
		}
	})
}

func (c *container) configure(change func(config map[string]any)) {
	c.T.Helper()
	file := filepath.Join(c.bundle, "config.json")
	text := must.Get(os.ReadFile(file))(c.T)
	var config map[string]any
	c.Must(json.Unmarshal(text, &config))
	change(config)
	text = must.Get(json.Marshal(config))(c.T)
	c.Must(os.WriteFile(file, text, 0o644))
}

func (c *container) runtime(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.Bin, "gpuslice-runtime"), append([]string{"--root", filepath.Join(c.Dir, "runc")}, args...)...)
	cmd.Env = c.Env()
	return cmd
}

// output runs cmd with its output in a file. Waiting for a pipe would block on processes that remain in the container.
func (c *container) output(cmd *exec.Cmd) (string, error) {
	c.T.Helper()
	file, err := os.CreateTemp(c.Dir, "output-")
	c.Must(err)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	text, readErr := os.ReadFile(file.Name())
	c.Must(readErr)
	return string(text), err
}

// run starts the container in the background.
func (c *container) run() {
	c.T.Helper()
	if out, err := c.output(c.runtime("run", "--detach", "--bundle", c.bundle, c.id)); err != nil {
		c.T.Fatalf("run the container: %v\n%s", err, out)
	}
}

// pid returns the host pid of the container's init.
func (c *container) pid() int {
	c.T.Helper()
	out := must.Get(c.runtime("state", c.id).Output())(c.T)
	var state struct{ Pid int }
	c.Must(json.Unmarshal(out, &state))
	return state.Pid
}

func (c *container) exec(args ...string) (string, error) {
	c.T.Helper()
	return c.output(c.runtime(append([]string{"exec", c.id}, args...)...))
}

// hog is a process that tried to allocate memory.
type hog struct {
	said string // last line of its output
	pid  int    // on the host
}

func (g hog) holds(bytes, total uint64) bool {
	return g.said == fmt.Sprintf("holds %d of %d", bytes, total)
}

func (g hog) refused() bool { return strings.HasSuffix(g.said, ": CUDA_ERROR_OUT_OF_MEMORY") }

// mustHold starts a process that has to get the bytes, on a card that it sees as large as total.
func (c *container) mustHold(bytes, total uint64, what ...any) {
	c.T.Helper()
	must.Equal(c.T, c.hog(bytes).said, fmt.Sprintf("holds %d of %d", bytes, total), what...)
}

// mustRefuse starts a process that has to be refused the bytes. Its context counts until it has exited.
func (c *container) mustRefuse(bytes uint64, what ...any) {
	c.T.Helper()
	g := c.hog(bytes)
	must.True(c.T, g.refused(), append(what, g.said)...)
	c.Eventually("the refused process has exited", c.dead(g))
}

// hog starts a process that allocates bytes and keeps them.
func (c *container) hog(bytes uint64) hog {
	c.T.Helper()
	return c.start("/demo/cuda_hog", strconv.FormatUint(bytes, 10))
}

// start starts a process in the container and waits for a line that is not the interceptor's.
func (c *container) start(args ...string) hog {
	c.T.Helper()
	said := must.Get(os.CreateTemp(c.Dir, "hog-"))(c.T)
	defer said.Close()
	pidFile := said.Name() + ".pid"
	cmd := c.runtime(append([]string{"exec", "--detach", "--pid-file", pidFile, c.id}, args...)...)
	cmd.Stdout, cmd.Stderr = said, said
	c.Must(cmd.Run())
	text := must.Get(os.ReadFile(pidFile))(c.T)
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(c.T)
	var line string
	c.Eventually("the process has said what it got", func() bool {
		text, err := os.ReadFile(said.Name())
		line = testhost.LastLine(string(text))
		return err == nil && line != "" && !strings.HasPrefix(line, "gpuslice: ")
	})
	return hog{said: line, pid: pid}
}

func (c *container) kill(g hog) {
	c.T.Helper()
	c.Must(unix.Kill(g.pid, unix.SIGKILL))
}
