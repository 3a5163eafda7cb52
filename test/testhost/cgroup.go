// SPDX-License-Identifier: Apache-2.0

package testhost

import "path/filepath"

// Cgroups are the directories of a cgroup at the top, in every hierarchy that has it.
func (h *Host) Cgroups(name string) []string {
	h.T.Helper()
	var all []string
	for _, hierarchies := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(filepath.Join(hierarchies, name))
		h.Must(err)
		all = append(all, found...)
	}
	return all
}
