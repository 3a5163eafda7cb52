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

// Membership is the cgroups that a process is in, one for each hierarchy.
type Membership struct {
	rel map[string]string // mount to path below it
}

// In says whether the process is in p or below it. `docker exec`, and a container's own
// children cgroups, are below.
func (m Membership) In(p Path) bool {
	rel, ok := m.rel[p.Mount]
	return ok && contains(p.Rel, rel)
}

// Is says whether the process is in p itself.
func (m Membership) Is(p Path) bool { return m.rel[p.Mount] == p.Rel }

// Each calls f with each cgroup that the process is in or below.
func (m Membership) Each(f func(mount, rel string)) {
	for mount, rel := range m.rel {
		for ; rel != "/"; rel = filepath.Dir(rel) {
			f(mount, rel)
		}
		f(mount, rel)
	}
}

// Membership reads which cgroups pid is in. The caller holds the process's pidfd and checks it afterwards.
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
		// hierarchy-id:controllers:path, and the path may hold colons (podman's systemd slices do).
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

// hierarchy of a line of /proc/PID/cgroup; nil if it is not mounted (a kernel shows "0::" on pure v1 as well).
func (h *Host) hierarchy(id, controllers string) *hierarchy {
	if id == "0" && controllers == "" {
		return h.unified
	}
	return h.hierarchyV1(controllers)
}

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	mount string
	root  string // the cgroup that is seen at mount: "/" but in a container that sees a part only
	v2    bool
}

// below turns a path of /proc/PID/cgroup into one below the mount; false if it cannot be seen there: it begins with ".." for a process
// outside the enforcer's cgroup namespace. A kernel cuts a path that is longer than 4095 bytes (one before 6.7 fails with ENAMETOOLONG), and
// whoever made that cgroup chooses where: it may end in "/", "/." or "/..", and is below what it begins with all the same.
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

// hierarchiesOf finds the cgroup mounts in proc(5) mountinfo: the unified one, and the v1 ones by each of their
// controllers. Of several mounts of one hierarchy the first that shows all of it is taken.
func hierarchiesOf(mounts []*mountinfo.Info) (unified *hierarchy, controllers map[string]*hierarchy) {
	controllers = make(map[string]*hierarchy)
	for _, m := range mounts {
		c := &hierarchy{mount: m.Mountpoint, root: m.Root}
		switch m.FSType {
		case "cgroup2":
			c.v2 = true
			if better(c, unified) {
				unified = c
			}
		case "cgroup":
			addV1(controllers, c, m.VFSOptions)
		}
	}
	return unified, controllers
}

func better(c, than *hierarchy) bool {
	return than == nil || (c.root == "/" && than.root != "/")
}
