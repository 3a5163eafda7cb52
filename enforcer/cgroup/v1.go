// SPDX-License-Identifier: Apache-2.0

package cgroup

import "strings"

// This file is for cgroup v1 alone: hosts without v2, and hosts with both versions where a container has no unified cgroup of its own. v1
// has no file with an event that tells whether a cgroup is populated, and no cgroup.kill (Kill returns ErrNoKill).

// namingControllers are the controllers that may name a container, in order of preference. pids and devices come first: every runtime uses
// them, at no cost. cpuset, net_cls and blkio are left out, since nested runtimes are known to share them.
var namingControllers = []string{"pids", "memory", "devices", "freezer", "cpu"}

// namingV1 returns the v1 hierarchies that may name a container. Runtimes differ in their use of them. Seen on a host with both versions
// (v1 controllers next to /sys/fs/cgroup/unified), with runc 1.1.5:
//
//	9:name=systemd:/c1
//	8:pids:/c1
//	4:memory:/engine/4f8a73a1/c1
//	...
//	0::/c1
//
// So runc creates a unified cgroup as well, and a controller may have another path than the others (below the engine's own cgroup). Other
// runtimes use only the v1 controllers, and so does runc if the unified mount is read-only or not at its usual place. Then "0::" shows the
// cgroup of the container's parent, often "/".
func (h *Host) namingV1() []*hierarchy {
	var all []*hierarchy
	for _, name := range namingControllers {
		if c := h.controllers[name]; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// hierarchyV1 returns the hierarchy of the controllers in a line of /proc/PID/cgroup, or nil if it is not mounted.
func (h *Host) hierarchyV1(controllers string) *hierarchy {
	for name := range strings.SplitSeq(controllers, ",") {
		if c := h.controllers[name]; c != nil {
			return c
		}
	}
	return nil
}

// addV1 adds a mount under each of its controllers, which are among its options.
func addV1(controllers map[string]*hierarchy, c *hierarchy, options string) {
	for name := range strings.SplitSeq(options, ",") {
		if name != "rw" && name != "ro" && isBetter(c, controllers[name]) {
			controllers[name] = c
		}
	}
}

// populatedV1 implements Populated by a search for a process.
func populatedV1(p Path) (bool, error) {
	populated := false
	err := eachProcess(p, func(int) error {
		populated = true
		return errStop
	})
	return populated, err
}

// Recheck schedules a check of p. Call it when p's init has died, since v1 has no event for that. A v1 cgroup that still has processes is
// then checked every retryInterval until it is empty.
func (w *Watcher) Recheck(p Path) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.watches[p]; e != nil {
		e.pollV1, w.polled[p] = true, true
		w.wake()
	}
}

// silentV1 reports whether p may become empty without an event. It cannot while its init is alive.
func silentV1(p Path, e *entry) bool { return !p.V2 && e.pollV1 }
