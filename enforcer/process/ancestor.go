// SPDX-License-Identifier: Apache-2.0

package process

// maxDepth bounds the walk to the top of the process tree. A shell in a shell in a build in a session is
// a dozen deep; a tree deeper than this is somebody's attempt to keep the enforcer busy.
const maxDepth = 512

// Ancestor says whether ancestor is pid itself or above it in the process tree. Both are bare pids: the
// caller holds a Handle of each, and asks both afterwards whether they are Alive.
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
// A parent may die between two steps and its pid be given to another process, whose parents would then be walked.
// So each step is read twice: if the child still has that parent after the parent's own entry was
// read, the parent lived in between (an exited one's children are handed on at once). And no ancestor is
// younger than its descendant, since orphans only go to an ancestor.
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
			child = again // handed on meanwhile: read the new parent
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
