// SPDX-License-Identifier: Apache-2.0

// Package cgroup answers, from the kernel, which cgroup a process is in, who else is in it, and when it is
// empty or gone. It is what makes "all processes of a container" a fact and not a claim.
//
// It owns the differences between cgroup v1, v2 and the hybrid layout; nothing above it knows which one
// the host has. It reads, and Kill ends processes: it must never create, remove or otherwise write to a cgroup, and
// it must never build a path from a container's id, since every engine and every cgroup driver builds another.
//
// # Which hierarchy names a container
//
// On v2, the one there is: the line "0::" of /proc/PID/cgroup. Where there are hierarchies of v1, with or without a unified
// one beside them, a process has a path in each, and a runtime may have made the container's own in some of them only.
// A path is therefore taken only if it is the container's own: not the root, not one that the process's parent
// (the runtime or its shim) is in as well, and not one that the enforcer is in. The unified hierarchy is asked first,
// then those of v1.
//
// What is for v1 alone is in v1.go.
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

// ErrShared says that a process has no cgroup of its own.
var ErrShared = errors.New("the process is in no cgroup of its own")

// Path is one cgroup. It is comparable; two Paths of one cgroup are equal.
type Path struct {
	Mount string // where its hierarchy is mounted
	Rel   string // its path below Mount, beginning with a slash
	Inode uint64 // of its directory: a path can be used again, an inode is not before reboot; 0 if unknown
	V2    bool
}

// Dir is the cgroup's directory.
func (p Path) Dir() string { return filepath.Join(p.Mount, p.Rel) }

func (p Path) String() string { return p.Dir() }

// Exists says whether the cgroup is there, and not another one at its path.
func (p Path) Exists() bool {
	guard.MayWait("a cgroup's file")
	info, err := os.Stat(p.Dir())
	return err == nil && info.Sys().(*syscall.Stat_t).Ino == p.Inode
}

// Contains says whether child is parent or below it, component by component: /a does not contain /ab.
func Contains(parent, child Path) bool {
	return parent.Mount == child.Mount && contains(parent.Rel, child.Rel)
}

func contains(parent, child string) bool {
	if parent == "/" || parent == child {
		return true
	}
	rest, ok := strings.CutPrefix(child, parent)
	return ok && rest[0] == '/'
}

// Host is the cgroup hierarchies of this host. It holds no descriptors and may be used by several goroutines.
type Host struct {
	proc        string
	unified     *hierarchy            // nil on pure v1
	controllers map[string]*hierarchy // of v1
	own         map[string]string     // of the enforcer: mount to path
}

// Open finds where the hierarchies are mounted. proc is "/proc" but in tests.
func Open(proc string) (*Host, error) {
	h := &Host{proc: proc}
	file, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find the cgroup mounts: %w", err)
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("find the cgroup mounts: %w", err)
	}
	h.unified, h.controllers = hierarchiesOf(mounts)
	if h.unified == nil && len(h.controllers) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup, or run the enforcer on the host")
	}
	own, err := h.read("self")
	if err != nil {
		return nil, fmt.Errorf("find the enforcer's own cgroup: %w", err)
	}
	h.own = own.rel
	return h, nil
}

// V2 is where cgroups of version 2 are mounted, and whether there are no others.
func (h *Host) V2() (mount string, alone bool) {
	if h.unified == nil {
		return "", false
	}
	return h.unified.mount, len(h.controllers) == 0
}

// Of finds the cgroup that is pid's own, where pid is the first process of a container whose parent
// is outside, and m are the cgroups that it is in. It returns ErrShared if there is none.
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

// parent is where the parent of pid is; nowhere, if it has none that can be seen.
func (h *Host) parent(pid int) (Membership, error) {
	b, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Membership{}, fmt.Errorf("parent of process %d: %w", pid, err)
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // state, parent, ...
	if len(fields) < 2 {
		return Membership{}, fmt.Errorf("parent of process %d: stat is %.80q", pid, s)
	}
	if fields[1] == "0" {
		return Membership{}, nil
	}
	m, err := h.read(fields[1])
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Membership{}, nil // it died just now: the other two checks remain
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
