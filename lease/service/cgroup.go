// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Bounds are the limits of each broker.
type Bounds struct {
	Memory uint64  // bytes
	PIDs   int     // threads
	CPUs   float64 // 0: no limit
}

// cgroups manages one cgroup per broker, in the unified hierarchy and in each v1 hierarchy with a limited controller.
type cgroups struct {
	roots []hierarchy // parents of the brokers' cgroups, the unified one first
}

type hierarchy struct {
	dir   string
	files map[string]string // value of each file
}

func openCgroups(name string, b Bounds, log *slog.Logger) (*cgroups, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("find the cgroup mounts: %w", err)
	}
	g := &cgroups{}
	bound := make(map[string]bool)
	for _, m := range mounts {
		h := hierarchy{dir: filepath.Join(m.Mountpoint, name), files: make(map[string]string)}
		v2 := m.FSType == "cgroup2"
		controllers := strings.Split(m.VFSOptions, ",")
		if v2 {
			text, err := os.ReadFile(filepath.Join(m.Mountpoint, "cgroup.controllers"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			controllers = strings.Fields(string(text))
		}
		var here []string
		for _, controller := range controllers {
			file, value := b.of(controller, v2)
			if file == "" || bound[controller] {
				continue
			}
			bound[controller] = true
			here = append(here, controller)
			h.files[file] = value
		}
		if !v2 && len(h.files) == 0 || slices.ContainsFunc(g.roots, func(other hierarchy) bool { return other.dir == h.dir }) {
			continue
		}
		if err := os.MkdirAll(h.dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the brokers' cgroup: %w", err)
		}
		if v2 {
			for _, controller := range here {
				for _, dir := range []string{m.Mountpoint, h.dir} {
					if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
						return nil, fmt.Errorf("enable controller %s for the brokers' cgroups: %w", controller, err)
					}
				}
			}
			g.roots = slices.Insert(g.roots, 0, h)
		} else {
			g.roots = append(g.roots, h)
		}
	}
	if len(g.roots) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup, or run the service on the host")
	}
	for _, controller := range []string{"memory", "pids"} {
		if !bound[controller] {
			log.Warn("brokers run without this limit: the host has no such cgroup controller", "controller", controller)
		}
	}
	return g, nil
}

// of returns the controller's file and value, or "" if there is no limit.
func (b Bounds) of(controller string, v2 bool) (file, value string) {
	const period = 100000
	quota := strconv.Itoa(int(math.Round(b.CPUs * period)))
	switch {
	case controller == "memory" && v2:
		return "memory.max", strconv.FormatUint(b.Memory, 10)
	case controller == "memory":
		return "memory.limit_in_bytes", strconv.FormatUint(b.Memory, 10)
	case controller == "pids":
		return "pids.max", strconv.Itoa(b.PIDs)
	case controller == "cpu" && b.CPUs > 0 && v2:
		return "cpu.max", fmt.Sprintf("%s %d", quota, period)
	case controller == "cpu" && b.CPUs > 0:
		return "cpu.cfs_quota_us", quota // of cfs_period_us, which is 100 ms by default
	}
	return "", ""
}

func (g *cgroups) make(id string) error {
	for _, h := range g.roots {
		dir := filepath.Join(h.dir, id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make the broker's cgroup: %w", err)
		}
		for file, value := range h.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
				return fmt.Errorf("limit the broker: %w", err)
			}
		}
	}
	return nil
}

// mayClone3 reports whether this process may call clone3(2), which starts a process in a cgroup. RestrictNamespaces of the systemd unit denies it.
// Arguments of no size are invalid.
var mayClone3 = sync.OnceValue(func() bool {
	_, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	return errno == unix.EINVAL
})

// unified returns a broker's cgroup v2 directory for starting a process in it, or nil if that may not be possible.
func (g *cgroups) unified(id string) *os.File {
	dir := filepath.Join(g.roots[0].dir, id)
	if !mayClone3() {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil { // exists since Linux 5.14; 5.7 would suffice
		return nil
	}
	file, _ := os.Open(dir)
	return file
}

// add moves a process into a broker's cgroup, unless it is there.
func (g *cgroups) add(id string, pid int) error {
	for _, h := range g.roots {
		path := filepath.Join(h.dir, id, "cgroup.procs")
		if text, err := os.ReadFile(path); err == nil && slices.Contains(strings.Fields(string(text)), strconv.Itoa(pid)) {
			continue
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("move a process into the broker's cgroup: %w", err)
		}
	}
	return nil
}

// empty kills the processes of a broker's cgroup, which the next broker is started in. After a write to cgroup.kill some kernels kill each process
// that clone3(2) starts in that cgroup (seen on 6.18.44).
func (g *cgroups) empty(id string) { killEach(filepath.Join(g.roots[0].dir, id)) }

func (g *cgroups) list() (ids []string) {
	for _, h := range g.roots {
		entries, err := os.ReadDir(h.dir)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if entry.IsDir() && !slices.Contains(ids, entry.Name()) {
				ids = append(ids, entry.Name())
			}
		}
	}
	return ids
}

// remove kills the processes of a broker's cgroup until none is left, even if they fork, and removes the cgroup.
func (g *cgroups) remove(id string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 5*time.Millisecond) {
		var left error
		for _, h := range g.roots {
			dir := filepath.Join(h.dir, id)
			if err := syscall.Rmdir(dir); err == nil || errors.Is(err, syscall.ENOENT) {
				continue
			}
			kill(dir)
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
				left = &fs.PathError{Op: "rmdir", Path: dir, Err: err}
			}
		}
		if left == nil || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

func kill(dir string) {
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // absent in v1 and before Linux 5.14
	killEach(dir)
}

// killEach kills the processes one by one.
func killEach(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 1 {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue
		}
		// The pid may have been reused: check that it is still in the cgroup.
		if again, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && slices.Contains(strings.Fields(string(again)), word) {
			_ = p.Signal(syscall.SIGKILL)
		}
		p.Close()
	}
}
