// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"strconv"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// pages are the pids that have each ledger mapped, as it was when all processes of the host were looked at once. By them a restarted
// enforcer comes back to the pages of its slices and pools. Who has a page need not be one of its slice any more, by cgroup or descent:
// a session's process may be nobody's descendant by now.
type pages map[ledger.File][]int

func findPages(log *slog.Logger) pages {
	found := make(pages)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		log.Error("look for the ledgers of slices in all processes", "err", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() { // which has those that it has opened
			continue
		}
		files, err := ledger.Files(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it has ended, or has no memory of its own
			log.Warn("look for the ledgers of slices", "pid", pid, "err", err)
		}
		for _, file := range files {
			found[file] = append(found[file], pid)
		}
	}
	return found
}

// whoHas is who has a ledger mapped; who had it when processes were last looked at may have ended since. Called with change held.
func (e *Enforcer) whoHas(id ledger.Identity) []int {
	if e.pages == nil {
		e.pages = findPages(e.log)
	}
	return e.pages[id.File()]
}

// fetch finds a ledger in the processes; nil if none has it. Called with change held.
func (e *Enforcer) fetch(id ledger.Identity, log *slog.Logger) *ledger.Ledger {
	for range 3 {
		pids := e.whoHas(id)
		for _, pid := range pids {
			l, err := ledger.FromProcess(pid, id)
			if err == nil {
				return l
			}
			if !errors.Is(err, os.ErrNotExist) {
				log.Warn("look for the ledger", "pid", pid, "err", err)
			}
		}
		if len(pids) == 0 {
			return nil
		}
		e.pages = nil // they have ended since, and may have left it to a child
	}
	return nil
}
