// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// Restart says what is known of a ledger that a former enforcer left.
type Restart struct {
	Over     bool   // its time was over: the page is closed, or going to be
	Changing bool   // its limits may not be on the page yet
	Frozen   string // why what the former enforcer had frozen stays so; "" if this one would not freeze it, or cannot find out when that ends
}

// Claims are the lanes that the page says somebody has. Each has its process if that is alive and keep says that it may have the lane; who
// has none has lost it. The lock is not held: nobody else has the ledger yet, and the kernel is asked who each process is.
func (q *Quota) Claims(keep func(*process.Handle) bool) []*Lane {
	var claims []*Lane
	q.Next = q.Ledger.HighLane() + 1 // read once: anybody who has the page can write it
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

// Adopt puts the books in order by a page that a former enforcer left, and the lanes that are claimed there.
//
// Processes that are checkpointed (suspended) hold what they are charged for again: who they are
// stands in the page only, which their siblings can write.
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
	raised := false // by what checkpointed processes had lent
	for _, l := range claims {
		raised = raised || l.Lent
	}
	count := min(q.Ledger.DeviceCount(), len(q.Devices))
	for i, d := range q.Devices {
		if i >= count { // the store had it, the page not yet
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
		if !r.Over && d.Limit != 0 && q.Ledger.Limit(i) == 0 { // it was frozen, or its own processes have harmed themselves
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
	if q.Frozen != "" { // the former enforcer may not have come to all devices
		q.Freeze(q.Frozen)
	}
	return nil
}

// adoptLanes takes up the lanes of those who live. A process has one lane: another that names it is settled.
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
			if !l.Lent { // else another restart has to know, too
				q.Ledger.SetLive(number)
			}
			if err := q.watch(l); err != nil {
				q.Log.Error("the exit of a process will not be noticed", "pid", l.Process.PID, "err", err)
			}
			continue
		case l.Process != nil:
			l.Process.Close()
		}
		if _, err := q.Ledger.Settle(number, l.Generation); err != nil {
			q.Damage(fmt.Errorf("lane %d of process %d cannot be settled: %w", number, l.Refusals.PID, err))
			continue
		}
		q.pass("restore.settled")
		q.Ledger.SetFree(number)
		q.free = append(q.free, number)
	}
}

// Owners are who the page says have lanes, by lane: of a ledger whose lanes nobody has adopted. The lock is held or not.
func (q *Quota) Owners() map[uint32]ledger.Owner {
	owners := make(map[uint32]ledger.Owner)
	for number := uint32(1); number <= q.Ledger.HighLane(); number++ {
		if owner, _, live := q.Ledger.Lane(number); live {
			owners[number] = owner
		}
	}
	return owners
}
