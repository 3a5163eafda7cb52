// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// Restart has what is known of a ledger that an earlier enforcer left.
type Restart struct {
	Over     bool   // it has expired: its page is closed, or has to be
	Changing bool   // the page may not have its last limits yet
	Frozen   string // why a frozen ledger stays frozen; "" if this enforcer would not freeze it, or cannot find out when to thaw it
}

// Claims returns the lanes that the page marks as owned. A lane has its process if that is alive and keep accepts it; other lanes have lost
// their owner. The lock is not held: no other goroutine has the ledger yet, and each lane takes a question to the kernel.
func (q *Quota) Claims(keep func(*process.Handle) bool) []*Lane {
	var claims []*Lane
	q.Next = q.Ledger.HighLane() + 1 // read once, since processes can overwrite it
	for number := uint32(1); number < q.Next; number++ {
		owner, generation, live := q.Ledger.Lane(number)
		if !live {
			continue
		}
		l := &Lane{Number: number, Generation: generation, Lent: q.Ledger.Suspended(number)}
		l.Refusals.PID = owner.PID
		if p, err := process.Again(owner.PID, owner.Start); err == nil {
			if keep(p) && p.Alive() {
				l.Process, l.Refusals = p, report.Process{PID: p.PID, Command: process.Name(p.PID)}
			} else {
				p.Close()
			}
		}
		claims = append(claims, l)
	}
	return claims
}

// Adopt restores the Quota from a page that an earlier enforcer left, and from the lanes claimed there.
//
// Checkpointed (suspended) processes get their charges back: only the page tells which they are, and their siblings can write it.
func (q *Quota) Adopt(r Restart, claims []*Lane) {
	q.adopting = true
	defer func() { q.adopting = false }()
	if q.Overwritten {
		q.Ledger.SetClosed()
	}
	if err := q.adoptDevices(r, claims); err != nil {
		q.Damage(err)
		for _, l := range claims {
			if l.Process != nil {
				l.Process.Close()
			}
		}
		return
	}
	q.adoptLanes(claims)
	if !r.Over && q.State == api.Active {
		if err := q.Verify(); err != nil {
			q.Damage(err)
		}
	}
}

func (q *Quota) adoptDevices(r Restart, claims []*Lane) error {
	raised := false // by the bytes lent by checkpointed processes
	for _, l := range claims {
		raised = raised || l.Lent
	}
	count := min(q.Ledger.DeviceCount(), len(q.Devices))
	for i, d := range q.Devices {
		if i >= count { // in the store, not yet in the page
			if err := q.Write(i); err != nil {
				return err
			}
			continue
		}
		account, err := q.Ledger.OpenAccount(i, 0)
		if err != nil {
			return err
		}
		d.account, d.Inherited = account, account.Held()
		if !r.Over && d.Limit != 0 && q.Ledger.Limit(i) == 0 { // frozen, or overwritten by its own processes
			if q.Frozen = r.Frozen; q.Frozen == "" {
				err = account.Limit(d.Limit)
			}
			d.Frozen = q.Frozen != ""
		}
		switch {
		case err != nil:
		case r.Changing:
			err = account.SetDevice(d.onPage(), q.Owner.ContextBytes(d))
		case raised:
			err = d.setLimit(d.Limit)
		}
		if err != nil {
			return err
		}
		q.Ledger.SetContextBytes(i, q.Owner.ContextBytes(d))
	}
	if q.Frozen != "" { // the earlier enforcer may have frozen some devices only
		q.Freeze(q.Frozen)
	}
	return nil
}

// adoptLanes adopts the lanes of live processes. A process has one lane: a second one is settled.
func (q *Quota) adoptLanes(claims []*Lane) {
	claimed := make(map[uint32]*Lane)
	for _, l := range claims {
		claimed[l.Number] = l
	}
	for number := uint32(1); number < q.Next; number++ {
		l := claimed[number]
		switch {
		case l == nil:
			q.free = append(q.free, number)
			continue
		case l.Process != nil && q.byPID[l.Process.PID] == nil:
			q.own(l)
			if !l.Lent { // a lent lane stays marked for the next restart
				q.Ledger.SetLive(number)
			}
			if err := q.watch(l); err != nil {
				q.Log.Error("cannot watch a process: its exit will not be noticed", "pid", l.Process.PID, "err", err)
			}
			continue
		case l.Process != nil:
			l.Process.Close()
		}
		if _, err := q.Ledger.Settle(number, l.Generation); err != nil {
			q.Damage(fmt.Errorf("cannot settle lane %d of process %d: %w", number, l.Refusals.PID, err))
			continue
		}
		q.pass("restore.settled")
		q.Ledger.SetFree(number)
		q.free = append(q.free, number)
	}
}

// Owners returns the owners of lanes by the page's claim, for a ledger without adopted lanes. The lock need not be held.
func (q *Quota) Owners() map[uint32]ledger.Owner {
	owners := make(map[uint32]ledger.Owner)
	for number := uint32(1); number <= q.Ledger.HighLane(); number++ {
		if owner, _, live := q.Ledger.Lane(number); live {
			owners[number] = owner
		}
	}
	return owners
}
