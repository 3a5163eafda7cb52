// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// pages says which processes have the ledgers of slices and pools mapped. By them a restarted enforcer comes back to its pages. Who
// has one need not be one of its slice any more, by cgroup or descent: a session's process may be nobody's descendant by now. So
// all processes of the host are looked at, once. It is used with the enforcer's change held.
type pages struct {
	log    *slog.Logger
	wanted ledger.Wanted
	found  map[ledger.File][]int // by pid; nil if nobody has looked yet
	silent map[int]bool          // did not let itself be looked at, and may have any
	looks  int

	files func(pid int, wanted ledger.Wanted) ([]ledger.File, error) // ledger.Files, but in tests
}

const (
	// patienceOfMaps is for one process. The kernel lets whoever reads the mappings of one wait for as long as that changes them,
	// which a hostile one can draw out, and one that hangs in a driver or a network file system does.
	patienceOfMaps = 200 * time.Millisecond
	// fewSilent are waited for so long; the rest a tenth of that.
	fewSilent = 32
	// mostLooks are how often all processes are looked at, at most: who had a page may have ended since, and left it to a child.
	mostLooks = 8
)

func newPages(log *slog.Logger) *pages {
	return &pages{log: log, wanted: make(ledger.Wanted), silent: make(map[int]bool), files: ledger.Files}
}

// want is called for all before anything is asked for. No inode is 0, but what a process has mapped that is no file looks like one.
func (p *pages) want(dev, inode uint64) {
	if inode != 0 {
		p.wanted.Add(ledger.File{Dev: dev, Inode: inode})
	}
}

// whoHas is who had a ledger mapped when processes were last looked at.
func (p *pages) whoHas(id ledger.Identity) []int {
	if p.found == nil {
		p.look()
	}
	return p.found[id.File()]
}

// mayHave says whether a process had the ledger mapped, or may have.
func (p *pages) mayHave(id ledger.Identity, pid int) bool {
	return slices.Contains(p.whoHas(id), pid) || p.silent[pid]
}

// fetch finds a ledger in the processes; nil if none has it.
func (p *pages) fetch(id ledger.Identity) *ledger.Ledger {
	for range 3 {
		pids := p.whoHas(id)
		for _, pid := range pids {
			l, err := ledger.FromProcess(pid, id)
			if err == nil {
				return l
			}
			if !errors.Is(err, os.ErrNotExist) {
				p.log.Warn("look for the ledger of a slice", "pid", pid, "err", err)
			}
		}
		if len(pids) == 0 || p.looks == mostLooks {
			return nil
		}
		p.look()
	}
	return nil
}

func (p *pages) look() {
	p.found = make(map[ledger.File][]int)
	p.looks++
	if len(p.wanted) == 0 {
		return
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		p.log.Error("look for the ledgers of slices in all processes", "err", err)
	}
	var pids []int
	for _, entry := range entries {
		// This process has those that it has opened.
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() && !p.silent[pid] {
			pids = append(pids, pid)
		}
	}
	for len(pids) > 0 {
		pids = p.lookAt(pids)
	}
}

// lookAt looks at processes in turn, until one does not let itself be looked at in time; those after it are the rest.
func (p *pages) lookAt(pids []int) (rest []int) {
	type answer struct {
		files []ledger.File
		err   error
	}
	answers, enough := make(chan answer), make(chan struct{})
	defer close(enough)
	go func() {
		for _, pid := range pids {
			files, err := p.files(pid, p.wanted)
			select {
			case answers <- answer{files, err}:
			case <-enough:
				return
			}
		}
	}()
	patience := patienceOfMaps
	if len(p.silent) > fewSilent {
		patience /= 10
	}
	for i, pid := range pids {
		select {
		case a := <-answers:
			if a.err != nil && !errors.Is(a.err, os.ErrNotExist) { // it has ended, or has no memory of its own
				p.log.Warn("a process cannot be looked at: if it is the last that has a slice's ledger, that is not found", "pid", pid, "err", a.err)
				p.silent[pid] = true
			}
			for _, file := range a.files {
				p.found[file] = append(p.found[file], pid)
			}
		case <-time.After(patience):
			p.log.Error("a process does not let itself be looked at: if it is the last that has a slice's ledger, that is not found", "pid", pid)
			p.silent[pid] = true
			return pids[i+1:]
		}
	}
	return nil
}
