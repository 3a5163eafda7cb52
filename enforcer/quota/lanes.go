// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"iter"
	"maps"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// Lane is a process's lane in a ledger. A process has one in its slice's ledger, and one in each pool's.
type Lane struct {
	Number     uint32
	Generation uint64 // by the enforcer's own count
	Process    *process.Handle
	Lent       bool // a former enforcer checkpointed its process, and others may have taken its bytes

	Refusals report.Process
	Slice    string // slice of the process, in a pool's ledger; "" if an earlier enforcer assigned the lane

	// For a slice's lane only:
	Attached time.Time            // zero if an earlier enforcer attached it
	Learned  [ledger.Devices]bool // the cost of its first context was measured
	Told     [ledger.Devices]Told
	Kept     uint64 // bytes of host memory that it keeps from earlier moves, as far as this enforcer knows
	NoHost   error  // why its last request for host memory was refused
	Mute     bool   // it has not answered a wanted move in time, nor since
}

// Told records when a process learned what the driver holds for it, to charge the rest. The rest is uncharged while the lane still has
// Number.
type Told struct {
	Number uint64
	At     time.Time
}

// ID returns an id that is unique within the quota, or 0 for nil.
func (l *Lane) ID() uint64 {
	if l == nil {
		return 0
	}
	return l.Generation<<16 | uint64(l.Number)
}

// Attach assigns a lane to a process, and returns the ledger's file, which the caller closes. On success the lane owns the process, and its
// exit is watched. The error is a ledger.Status if the process has to know it.
func (q *Quota) Attach(l *Lane) (*os.File, error) {
	p := l.Process
	if old := q.byPID[p.PID]; old != nil {
		// Either the pid was reused, and the exit of its former process is about to be reported. Or the same process attaches again, since
		// it does so once per image: execve(2) has unmapped the former image's memory.
		q.Settle(old)
		q.pass("attach.settled")
	}
	number, ok := q.place()
	if !ok {
		q.Log.Warn("no free process slot", "pid", p.PID, "slots", ledger.Slots)
		return nil, ledger.StatusFull
	}
	file, err := q.Ledger.File()
	if err != nil {
		q.free = append(q.free, number)
		return nil, err
	}
	l.Number = number
	if err := q.Ledger.Assign(number, ledger.Owner{PID: p.PID, Start: p.Start, NSPID: p.NSPID, PIDNS: p.PIDNS}); err != nil {
		closeQuietly(file)
		q.Damage(fmt.Errorf("cannot assign lane %d to process %d: %w", number, p.PID, err))
		return nil, ledger.StatusClosed
	}
	q.pass("attach.assigned")
	l.Generation = q.Ledger.Generation(number)
	q.Ledger.SetLive(number)
	q.pass("attach.live")
	q.own(l)
	if err := q.watch(l); err != nil {
		closeQuietly(file)
		q.Withdraw(l)
		return nil, err
	}
	return file, nil
}

// Withdraw takes back a lane from Attach before its process learns of it. The caller owns the process again.
func (q *Quota) Withdraw(l *Lane) {
	q.Deaths.Unwatch(l.Process)
	q.disown(l)
	q.Ledger.SetFree(l.Number)
}

// place takes a free lane, in constant time.
func (q *Quota) place() (uint32, bool) {
	if n := len(q.free); n > 0 {
		number := q.free[n-1]
		q.free = q.free[:n-1]
		return number, true
	}
	if int(q.Next) > ledger.Slots {
		return 0, false
	}
	q.Next++
	return q.Next - 1, true
}

func (q *Quota) own(l *Lane) {
	for i := range ledger.Devices {
		l.Refusals.Rest(i, q.Ledger.Refusals(i, l.Number)) // of an earlier process, or reported by an earlier enforcer
	}
	if r, ok := q.Ledger.LastRefusal(l.Number); ok {
		q.Ledger.Reported(l.Number, r)
	}
	q.lanes[l.Number], q.byPID[l.Process.PID], q.live[l.Number] = l, l, 1
}

func (q *Quota) disown(l *Lane) {
	delete(q.lanes, l.Number)
	delete(q.away, l.Number)
	if q.byPID[l.Process.PID] == l {
		delete(q.byPID, l.Process.PID)
	}
	q.live[l.Number] = 0
	q.free = append(q.free, l.Number)
}

func (q *Quota) watch(l *Lane) error {
	// Use another goroutine: the watcher's serves all processes, and died may wait for the lock.
	return q.Deaths.Watch(l.Process, func() { go q.died(l) })
}

// died settles the lane of an exited process. It takes the lock. A process's lanes in the slice and its pools are settled independently.
func (q *Quota) died(l *Lane) {
	q.Lock.Lock()
	defer q.Lock.Unlock()
	if !q.Has(l) {
		return // settled already, or the slice or pool is gone
	}
	q.pass("death.seen")
	q.Settle(l)
}

// Settle releases the bytes of a lane, and frees it.
func (q *Quota) Settle(l *Lane) {
	q.Deaths.Unwatch(l.Process)
	q.Owner.Ending(l)
	open := q.State == api.Active || q.State == api.Expired
	if open {
		q.comeBack(l)
		bytes, err := q.Ledger.Settle(l.Number, l.Generation)
		if err != nil {
			q.Damage(fmt.Errorf("cannot settle lane %d of process %d: %w", l.Number, l.Process.PID, err))
		}
		for i, d := range q.Devices {
			if bytes[i] > 0 {
				q.Log.Debug("released bytes of an exited process", "device", d.Name, "pid", l.Process.PID, "bytes", bytes[i])
			}
		}
		q.pass("death.settled")
	}
	if open {
		q.Ledger.SetFree(l.Number)
	}
	q.disown(l)
	l.Process.Close()
}

// Has reports whether a lane is still assigned.
func (q *Quota) Has(l *Lane) bool { return l != nil && q.lanes[l.Number] == l }

// Of returns the lane of a process, or nil.
func (q *Quota) Of(pid int) *Lane { return q.byPID[pid] }

// Count returns the number of assigned lanes.
func (q *Quota) Count() int { return len(q.lanes) }

// Lanes returns the assigned lanes.
func (q *Quota) Lanes() iter.Seq[*Lane] { return maps.Values(q.lanes) }

// Processes returns the assigned lanes by pid.
func (q *Quota) Processes() iter.Seq2[int, *Lane] { return maps.All(q.byPID) }

// Held returns the bytes that a process holds on a device by its lane. Bytes lent to others do not count. For a process that was moved to the
// host, the bytes that stayed on the device count.
func (q *Quota) Held(index int, l *Lane) uint64 {
	if left, away := q.away[l.Number]; away {
		return left[q.Devices[index].Name]
	}
	held := q.Ledger.Held(index, l.Number)
	return held - min(held, q.Devices[index].suspended[l.Number])
}
