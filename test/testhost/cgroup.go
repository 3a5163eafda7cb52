// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/test/must"
)

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
