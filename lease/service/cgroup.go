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
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Bounds of each broker on its host.
type Bounds struct {
	Memory uint64  // bytes
	PIDs   int     // threads
	CPUs   float64 // 0: none
}

// cgroups makes one for each broker, in the unified hierarchy and in those of v1 that have a controller of a bound.
type cgroups struct {
	roots []hierarchy // below each are the brokers'; the unified one is first, if there is one
}

type hierarchy struct {
	dir   string
	files map[string]string // the bounds, by file
}

// openCgroups makes the common cgroup.
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
						return nil, fmt.Errorf("hand controller %s down to the brokers: %w", controller, err)
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
			log.Warn("this host bounds no broker: it has no such controller of cgroups", "controller", controller)
		}
	}
	return g, nil
}

// of is the file of a controller, and what stands there; "" if nothing does.
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
		return "cpu.cfs_quota_us", quota // of cfs_period_us, which is 100 ms at first
	}
	return "", ""
}

// make a broker's, with its bounds.
func (g *cgroups) make(id string) error {
	for _, h := range g.roots {
		dir := filepath.Join(h.dir, id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make the broker's cgroup: %w", err)
		}
		for file, value := range h.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
				return fmt.Errorf("bound the broker: %w", err)
			}
		}
	}
	return nil
}

// unified is a broker's cgroup of version 2, in which a process can begin. nil: the kernel has none, or may be too old for that.
func (g *cgroups) unified(id string) *os.File {
	dir := filepath.Join(g.roots[0].dir, id)
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil { // Linux 5.14; it is possible from 5.7 on
		return nil
	}
	file, _ := os.Open(dir)
	return file
}

// add moves a process into a broker's, if it is elsewhere.
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

// killOthers ends all in a broker's but one process.
func (g *cgroups) killOthers(id string, keep int) { killEach(filepath.Join(g.roots[0].dir, id), keep) }

// list are the brokers that have any.
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

// remove ends what is in a broker's, however often that forks, and removes it.
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

// kill all processes of a cgroup. Before Linux 5.14, and in v1, that is done one by one.
func kill(dir string) {
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // not there in v1; then each is
	killEach(dir, 0)
}

// killEach kills them one by one, but for the one to keep.
func killEach(dir string, keep int) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 1 || pid == keep {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue
		}
		// It may be another since: then it is not in that cgroup.
		if again, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && slices.Contains(strings.Fields(string(again)), word) {
			_ = p.Signal(syscall.SIGKILL)
		}
		p.Close()
	}
}
