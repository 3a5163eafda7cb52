// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Asker is the process that sent a request, as the kernel reports it. It may have exited since.
type Asker struct {
	PID   int    // 0 if it is outside of the enforcer's pid namespace
	Start uint64 // its start time, or 0 if unknown
	UID   uint32
}

// Owns returns an error if the process pid is neither the asker nor its descendant. The caller holds a Handle of pid, and checks afterwards
// that it is alive.
func (a Asker) Owns(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	defer asker.Close()
	return above(asker, pid)
}

// above is the part of Owns that needs a live handle on the asker.
func above(asker *process.Handle, pid int) error {
	if !process.Ancestor(pid, asker.PID) {
		return fmt.Errorf("process %d is neither the caller (%d) nor a descendant of the caller", pid, asker.PID)
	}
	if !asker.Alive() { // a descendant may hold its connection, and its pid may be reused
		return fmt.Errorf("the calling process: %w", process.ErrDead)
	}
	return nil
}

// MayName returns an error if a pid in the asker's request may not mean the same process to the enforcer, since the asker is in another pid
// namespace.
func (a Asker) MayName(pid int) error {
	asker, err := a.names(pid)
	if err != nil {
		return err
	}
	return asker.Close()
}

// names implements MayName, and returns a handle on the asker.
func (a Asker) names(pid int) (asker *process.Handle, err error) {
	if a.PID <= 0 {
		return nil, errors.New("the calling process is not in the enforcer's pid namespace, nor below it, so its processes are not known: run it on the host")
	}
	if asker, err = process.Again(a.PID, a.Start); err != nil {
		return nil, fmt.Errorf("the calling process: %w", err)
	}
	own, err := process.PIDNamespace()
	if err == nil && asker.PIDNS != own {
		err = fmt.Errorf("the calling process (%d) is in another pid namespace than the enforcer, where pid %d is another process: "+
			"run it on the host, or in a container with the host's pids (--pid host)", a.PID, pid)
	}
	if err != nil {
		asker.Close()
		return nil, err
	}
	return asker, nil
}
