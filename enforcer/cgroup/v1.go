// SPDX-License-Identifier: Apache-2.0

package cgroup

import "strings"

// This file is for cgroup v1 alone: on a host that has nothing else, and on one with both versions where a container has no
// unified cgroup of its own. v1 has no file that says whether a cgroup is populated, with an event, and none that kills it
// (Kill returns ErrNoKill).

// namingControllers are those that may name a container, in this order: pids and devices cost nothing and every
// runtime uses them; memory, freezer and cpu are next. cpuset is not among them, nor are
// net_cls and blkio: nested runtimes are known to share those.
var namingControllers = []string{"pids", "memory", "devices", "freezer", "cpu"}

// namingV1 are the hierarchies of v1 that may name a container. What a runtime does with each of them differs. Seen on one
// host with both versions (v1 controllers beside /sys/fs/cgroup/unified), with runc 1.1.5:
//
//	9:name=systemd:/c1
//	8:pids:/c1
//	4:memory:/engine/4f8a73a1/c1
//	...
//	0::/c1
//
// So runc makes a unified cgroup too, and a controller may have another path than the others (below the
// one that the engine itself was put in). Other runtimes, and runc where the unified mount is read-only or
// not at the place it knows, use the v1 controllers only: then "0::" shows the place that
// the container's parent is in, often "/".
func (h *Host) namingV1() []*hierarchy {
	var all []*hierarchy
	for _, name := range namingControllers {
		if c := h.controllers[name]; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// hierarchyV1 is the hierarchy of the controllers in a line of /proc/PID/cgroup; nil if it is not mounted.
func (h *Host) hierarchyV1(controllers string) *hierarchy {
	for name := range strings.SplitSeq(controllers, ",") {
		if c := h.controllers[name]; c != nil {
			return c
		}
	}
	return nil
}

// addV1 notes a mount by each of its controllers, which are among its options.
func addV1(controllers map[string]*hierarchy, c *hierarchy, options string) {
	for name := range strings.SplitSeq(options, ",") {
		if name != "rw" && name != "ro" && better(c, controllers[name]) {
			controllers[name] = c
		}
	}
}

// populatedV1 is Populated by the lists of processes.
func populatedV1(p Path) (bool, error) {
	populated := false
	err := eachProcess(p, func(int) error {
		populated = true
		return errStop
	})
	return populated, err
}

// Recheck checks p soon: call it when p's init has died, of which v1 has no event. A cgroup of v1 that still has
// processes is then checked every retryInterval until it is empty.
func (w *Watcher) Recheck(p Path) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.watched[p]; e != nil {
		e.initDead, w.soon[p] = true, true
		w.wake()
	}
}

// silentV1 says whether p may become empty without an event. While its init is alive it does not.
func silentV1(p Path, e *watched) bool { return !p.V2 && e.initDead }
