// SPDX-License-Identifier: Apache-2.0

// Package cgroup answers from the kernel's files which cgroup a process is in, which processes a cgroup has, and when it becomes empty or
// is removed. It makes "all processes of a container" a fact of the kernel.
//
// It hides the differences between cgroup v1, v2 and the hybrid layout. It reads, and Kill kills processes. It must never create, remove or
// otherwise write to a cgroup, and never build a path from a container's id, since each engine and cgroup driver builds a different one.
//
// # Which hierarchy names a container
//
// On v2 there is one hierarchy: the line "0::" of /proc/PID/cgroup. With v1 hierarchies, with or without a unified one, a process has a
// path in each, and a runtime may have created the container's cgroup in some of them only. A path therefore counts only if it is the
// container's own: not the root, not shared with the process's parent (the runtime or its shim), and not shared with the enforcer. The
// unified hierarchy is tried first, then those of v1.
//
// The code for v1 alone is in v1.go.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrShared means that a process has no cgroup of its own.
var ErrShared = errors.New("the process is in no cgroup of its own")

// Path is one cgroup. Paths are comparable: two Paths of one cgroup are equal.
type Path struct {
	Mount string // mount point of its hierarchy
	Rel   string // path below Mount, with a leading slash
	Inode uint64 // inode of its directory, or 0 if unknown. A path may be reused; an inode is unique until reboot.
	V2    bool
}

func (p Path) Dir() string { return filepath.Join(p.Mount, p.Rel) }

func (p Path) String() string { return p.Dir() }

// Exists reports whether the cgroup exists. A new cgroup at the same path does not count.
func (p Path) Exists() bool {
	guard.MayWait("a cgroup's file")
	ok, err := exists(p)
	return ok && err == nil
}

// contains reports whether child is parent or below it, by path components: /a does not contain /ab.
func contains(parent, child string) bool {
	if parent == "/" || parent == child {
		return true
	}
	rest, ok := strings.CutPrefix(child, parent)
	return ok && rest[0] == '/'
}

// Host has the host's cgroup hierarchies. It holds no descriptors and is safe for concurrent use.
type Host struct {
	proc        string
	unified     *hierarchy            // nil on pure v1
	controllers map[string]*hierarchy // v1 hierarchies by controller
	own         map[string]string     // the enforcer's own path, by mount
}

// Open finds the mounts of the hierarchies. proc is "/proc" except in tests.
func Open(proc string) (*Host, error) {
	h := &Host{proc: proc}
	file, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	h.unified, h.controllers = hierarchiesOf(mounts)
	if h.unified == nil && len(h.controllers) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup, or run the enforcer on the host")
	}
	own, err := h.read("self")
	if err != nil {
		return nil, fmt.Errorf("cannot find the enforcer's own cgroup: %w", err)
	}
	h.own = own.rel
	return h, nil
}

// V2 returns the mount point of the v2 hierarchy, and whether there is no other hierarchy.
func (h *Host) V2() (mount string, alone bool) {
	if h.unified == nil {
		return "", false
	}
	return h.unified.mount, len(h.controllers) == 0
}

// Of returns the cgroup that belongs to the process pid, or ErrShared if there is none. pid is the first process of a container, with its
// parent outside, and m is its membership.
func (h *Host) Of(pid int, m Membership) (Path, error) {
	parent, err := h.parent(pid)
	if err != nil {
		return Path{}, err
	}
	candidates := h.namingV1()
	if h.unified != nil {
		candidates = slices.Insert(candidates, 0, h.unified)
	}
	var tried []string
	for _, c := range candidates {
		rel, ok := m.rel[c.mount]
		if !ok {
			continue
		}
		tried = append(tried, filepath.Join(c.mount, rel))
		if rel == "/" || contains(rel, h.own[c.mount]) || rel == parent.rel[c.mount] {
			continue
		}
		p := Path{Mount: c.mount, Rel: rel, V2: c.v2}
		if p.Inode, err = inode(p.Dir()); err != nil {
			return Path{}, fmt.Errorf("cgroup of process %d: %w", pid, err)
		}
		return p, nil
	}
	return Path{}, fmt.Errorf("process %d: %w (tried %s): run the container with cgroups enabled", pid, ErrShared, strings.Join(tried, ", "))
}

// parent returns the membership of pid's parent. It is empty if the parent is outside of this pid namespace.
func (h *Host) parent(pid int) (Membership, error) {
	b, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Membership{}, fmt.Errorf("parent of process %d: %w", pid, err)
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // fields 3 (state), 4 (parent), ...
	if len(fields) < 2 {
		return Membership{}, fmt.Errorf("parent of process %d: stat is %.80q", pid, s)
	}
	if fields[1] == "0" {
		return Membership{}, nil
	}
	m, err := h.read(fields[1])
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Membership{}, nil // it exited just now: the other two checks remain
	}
	return m, err
}

func inode(dir string) (uint64, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}
