// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/test/usage"
)

type enforcer struct {
	*client.Client
	o       *options
	dir     string // run directory and sockets
	state   string
	truth   bool
	cmd     *exec.Cmd
	cgroup  string
	members []*container
}

type container struct {
	id, cgroup string
	pid        int
	in         *os.File // releases a hog
}

func start(o *options, truth bool) (*enforcer, error) {
	e := &enforcer{o: o, truth: truth}
	var err error
	if e.dir, err = os.MkdirTemp(volatile(), "gpuslice-scale-"); err != nil {
		return nil, err
	}
	if e.state, err = os.MkdirTemp("", "gpuslice-scale-"); err != nil {
		return nil, err
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(mount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			e.cgroup = filepath.Join(mount, filepath.Base(e.dir))
		}
	}
	if e.cgroup == "" {
		return nil, errors.New("a unified cgroup hierarchy is needed")
	}
	nvml := "off"
	if truth {
		nvml = "auto"
	}
	library, err := filepath.Abs(filepath.Join(o.bin, api.LibraryName))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\ngroup = \"\"\nlog_level = \"warn\"\nnvml = %q\n[admission]\novercommit = 1000.0\n",
		e.socket(), filepath.Join(e.dir, "run"), e.state, library, nvml)
	if err := errors.Join(os.Mkdir(e.cgroup, 0o755), os.WriteFile(filepath.Join(e.dir, "config.toml"), []byte(text), 0o600)); err != nil {
		return nil, err
	}
	e.Client = client.New(e.socket())
	if err := e.run(); err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// volatile returns a directory in memory, like /run/gpuslice; on disk the creation of a slice's directory takes much longer.
func volatile() string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return "/tmp"
}

func (e *enforcer) socket() string { return filepath.Join(e.dir, "control.sock") }

func (e *enforcer) environment() []string {
	bin, err := filepath.Abs(e.o.bin)
	if err != nil || !e.truth {
		return os.Environ()
	}
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(e.dir, "card"))
}

func (e *enforcer) run() error {
	e.cmd = exec.Command(filepath.Join(e.o.bin, "gpusliced"), "--config", filepath.Join(e.dir, "config.toml"))
	e.cmd.Env, e.cmd.Stderr = e.environment(), os.Stderr
	if err := e.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := e.Info(context.Background()); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("gpusliced does not answer: %w", err)
		}
	}
}

func (e *enforcer) again() error {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	return e.run()
}

func (e *enforcer) stop() {
	for _, c := range e.members {
		_ = syscall.Kill(c.pid, syscall.SIGKILL)
	}
	for _, c := range e.members {
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(c.pid, &status, 0, nil)
		if c.in != nil {
			c.in.Close()
		}
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	for _, c := range e.members {
		for range 100 {
			if err := os.Remove(c.cgroup); err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	_ = os.Remove(e.cgroup)
	os.RemoveAll(e.dir)
	os.RemoveAll(e.state)
}

// containers creates n cgroups with one process each, of the given kind.
func (e *enforcer) containers(n int, kind string) ([]*container, error) {
	hog, err := filepath.Abs(filepath.Join(e.o.bin, "demo", "cuda_hog"))
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	all := make([]*container, 0, n)
	for i := range n {
		c := &container{id: fmt.Sprintf("scale-%d", i), cgroup: filepath.Join(e.cgroup, strconv.Itoa(i))}
		if err := os.Mkdir(c.cgroup, 0o755); err != nil {
			return nil, err
		}
		dir, err := os.Open(c.cgroup)
		if err != nil {
			return nil, err
		}
		attr := &syscall.ProcAttr{Env: e.environment(), Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}}
		attr.Sys = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
		args := []string{"/bin/sleep", "infinity"}
		if kind == "hog" {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			c.in = w
			attr.Files[0] = r.Fd()
			// Like a container it waits until it is registered.
			args = []string{"/bin/sh", "-c", `read dir library; export GPUSLICE_DIR=$dir LD_PRELOAD=$library; exec "$0" 1048576`, hog}
			defer r.Close()
		}
		c.pid, err = syscall.ForkExec(args[0], args, attr)
		dir.Close()
		if err != nil {
			return nil, err
		}
		e.members = append(e.members, c)
		all = append(all, c)
	}
	return all, nil
}

// register registers containers with concurrent clients.
func (e *enforcer) register(c []*container, clients int) (t timing, replies []api.RegisterReply, err error) {
	replies = make([]api.RegisterReply, len(c))
	t, err = timed(len(c), clients, func(i int) (err error) {
		replies[i], err = e.Register(context.Background(), api.RegisterRequest{
			ID: c[i].id, Container: c[i].id, PID: c[i].pid, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 1 << 30}}})
		return err
	})
	return t, replies, err
}

func (e *enforcer) release(c []*container, clients int) (timing, error) {
	return timed(len(c), clients, func(i int) error {
		_, err := e.Release(context.Background(), c[i].id, 0, true)
		return err
	})
}

// timed calls do n times with concurrent clients.
func timed(n, clients int, do func(i int) error) (t timing, err error) {
	took := make([]time.Duration, n)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for range clients {
		all.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				begin := time.Now()
				if err := do(i); err != nil {
					failed.Store(&err)
					return
				}
				took[i] = time.Since(begin)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return t, *err
	}
	t.PerSecond = float64(n) / time.Since(began).Seconds()
	slices.Sort(took)
	t.P50 = took[len(took)/2].Seconds() * 1000
	t.P99 = took[len(took)*99/100].Seconds() * 1000
	return t, nil
}

func (e *enforcer) attach(c []*container, replies []api.RegisterReply) error {
	for i := range c {
		if _, err := fmt.Fprintf(c[i].in, "%s %s\n", filepath.Join(replies[i].Dir, "bind"), replies[i].Library); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		all, err := e.Slices(context.Background())
		if err != nil {
			return err
		}
		attached := 0
		for _, s := range all {
			if s.ProcessCount > 0 && len(s.Devices) > 0 && s.Devices[0].Used > 0 {
				attached++
			}
		}
		if attached == len(c) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d processes have attached in a minute", attached, len(c))
		}
	}
}

type cost struct {
	usage.Usage
	descriptors int
}

func (e *enforcer) cost() (c cost, err error) {
	if c.Usage, err = usage.Of(e.cmd.Process.Pid); err != nil {
		return c, err
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.cmd.Process.Pid))
	c.descriptors = len(entries)
	return c, err
}

// idle returns the fraction of a core that the enforcer uses without requests.
func (e *enforcer) idle(look time.Duration) (float64, error) {
	time.Sleep(time.Second)
	before, err := e.cost()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	time.Sleep(look)
	after, err := e.cost()
	return float64(after.CPU-before.CPU) / float64(time.Since(began)), err
}
