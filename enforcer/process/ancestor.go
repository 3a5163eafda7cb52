// SPDX-License-Identifier: Apache-2.0

package process

// maxDepth bounds the walk to the top of the process tree. A shell in a build in a session is about a dozen deep; a deeper tree than this
// is an attempt to keep the enforcer busy.
const maxDepth = 512

// Ancestor reports whether ancestor is pid or above it in the process tree. Both are bare pids: the caller holds a Handle of each, and
// checks afterwards that both are Alive.
func Ancestor(pid, ancestor int) bool {
	found := false
	Ancestors(pid, func(above int) bool {
		found = above == ancestor
		return !found
	})
	return found
}

// Ancestors calls each with pid, its parent, and so on to the top of the process tree, until each returns false.
//
// A parent may exit between two steps and its pid be reused, and the walk would continue with the wrong process. So each step reads the
// child twice: if it still has the same parent after the parent's stat was read, the parent was alive in between (the children of an
// exiting process are reparented at once). And no ancestor is younger than its descendant, since an orphan is reparented to an ancestor.
func Ancestors(pid int, each func(pid int) bool) {
	child, err := readStat(pid)
	if err != nil {
		return
	}
	if !each(pid) {
		return
	}
	for range maxDepth {
		if child.ppid <= 0 {
			return
		}
		parent, err := readStat(child.ppid)
		again, err2 := readStat(pid)
		if err2 != nil || again.start != child.start {
			return
		}
		if again.ppid != child.ppid {
			child = again // reparented in between: read the new parent
			continue
		}
		if err != nil || parent.start > child.start {
			return
		}
		pid, child = child.ppid, parent
		if !each(pid) {
			return
		}
	}
}
