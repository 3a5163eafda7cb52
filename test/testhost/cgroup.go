// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
)

// UnifiedCgroups returns the mount of the unified cgroup hierarchy, or "" if there is none.
func UnifiedCgroups() string {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(mount, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return mount
		}
	}
	return ""
}

// Cgroups returns the directories of a top-level cgroup in all hierarchies.
func (h *Host) Cgroups(name string) []string {
	h.T.Helper()
	var all []string
	for _, hierarchies := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found := must.Get(filepath.Glob(filepath.Join(hierarchies, name)))(h.T)
		all = append(all, found...)
	}
	return all
}
