// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Membership is the set of cgroups that a process is in, one per hierarchy.
type Membership struct {
	rel map[string]string // by mount, the path below it
}

// In reports whether the process is in p or below it. Processes of `docker exec` and of a container's child cgroups are below.
func (m Membership) In(p Path) bool {
	rel, ok := m.rel[p.Mount]
	return ok && contains(p.Rel, rel)
}

// Is reports whether the process is in p itself.
func (m Membership) Is(p Path) bool { return m.rel[p.Mount] == p.Rel }

// Each calls f with each cgroup of the process, and with those above it.
func (m Membership) Each(f func(mount, rel string)) {
	for mount, rel := range m.rel {
		for ; rel != "/"; rel = filepath.Dir(rel) {
			f(mount, rel)
		}
		f(mount, rel)
	}
}

// Membership reads the cgroups of pid. The caller holds a pidfd of the process, and checks it afterwards.
func (h *Host) Membership(pid int) (Membership, error) {
	return h.read(strconv.Itoa(pid))
}

func (h *Host) read(process string) (Membership, error) {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(filepath.Join(h.proc, process, "cgroup"))
	if err != nil {
		return Membership{}, fmt.Errorf("cgroup of process %s: %w", process, err)
	}
	m := Membership{rel: make(map[string]string)}
	for line := range strings.Lines(string(b)) {
		// hierarchy-id:controllers:path. The path may contain colons, as those of podman's systemd slices do.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			return Membership{}, fmt.Errorf("cgroup of process %s: line %.80q is not id:controllers:path", process, line)
		}
		if c := h.hierarchy(parts[0], parts[1]); c != nil {
			if rel, ok := c.below(parts[2]); ok {
				m.rel[c.mount] = rel
			}
		}
	}
	return m, nil
}

// hierarchy returns the hierarchy of a line of /proc/PID/cgroup, or nil if it is not mounted. A kernel shows "0::" on pure v1, too.
func (h *Host) hierarchy(id, controllers string) *hierarchy {
	if id == "0" && controllers == "" {
		return h.unified
	}
	return h.hierarchyV1(controllers)
}

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	mount string
	root  string // cgroup that the mount shows: "/" except in a container that sees only a part
	v2    bool
}

// below converts a path of /proc/PID/cgroup into one below the mount. It returns false if the mount does not show it: a path begins with
// ".." for a process outside the enforcer's cgroup namespace. A kernel truncates a path after 4095 bytes (before 6.7 the read fails with
// ENAMETOOLONG), and the container chooses where. A truncated path may end in "/", "/." or "/..", and is still below its beginning.
func (c *hierarchy) below(path string) (string, bool) {
	if !strings.HasPrefix(path, "/") || contains("/..", path) {
		return "", false
	}
	if c.root == "/" {
		return path, true
	}
	if !contains(c.root, path) {
		return "", false
	}
	if path == c.root {
		return "/", true
	}
	return path[len(c.root):], true
}

// hierarchiesOf finds the cgroup mounts in proc(5) mountinfo: the unified one, and those of v1 by controller. Of several mounts of one
// hierarchy it takes the first that shows the whole of it.
func hierarchiesOf(mounts []*mountinfo.Info) (unified *hierarchy, controllers map[string]*hierarchy) {
	controllers = make(map[string]*hierarchy)
	for _, m := range mounts {
		c := &hierarchy{mount: m.Mountpoint, root: m.Root}
		switch m.FSType {
		case "cgroup2":
			c.v2 = true
			if isBetter(c, unified) {
				unified = c
			}
		case "cgroup":
			addV1(controllers, c, m.VFSOptions)
		}
	}
	return unified, controllers
}

func isBetter(c, than *hierarchy) bool {
	return than == nil || (c.root == "/" && than.root != "/")
}
