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

// Lane is a place in the ledger that a process has: one in its slice's, and one in the pool's.
type Lane struct {
	Number     uint32
	Generation uint64 // of the lane, by the enforcer's own count
	Process    *process.Handle
	Lent       bool // by a former enforcer: its process was checkpointed, and others may have taken what it is charged for

	Refusals report.Process
	Slice    string // of a pool's lane, whose process it is; "" of one that a former enforcer gave

	// Of a slice's lane only:
	Attached time.Time            // zero if that was another enforcer's doing
	Learned  [ledger.Devices]bool // its first context's cost was looked at
	Told     [ledger.Devices]Told
	Kept     uint64 // bytes of host memory that it has moved its memory to, and keeps for the next time, as far as this enforcer knows
	NoHost   error  // why it was given no host memory when it asked last
	Mute     bool   // it has not answered in time where its memory was wanted, nor since
}

// Told is when a process was told what the driver holds for it, to charge the rest. It has not as long as its lane has that number.
type Told struct {
	Number uint64
	At     time.Time
}

// ID is the lane's, as no other's of the quota is; not 0, which is nil's.
func (l *Lane) ID() uint64 {
	if l == nil {
		return 0
	}
	return l.Generation<<16 | uint64(l.Number)
}

// Attach gives a process a lane, and the ledger, which is the caller's to close. If there is no error the process is the lane's, and
// watched. An error is a ledger.Status where the process is to know it.
func (q *Quota) Attach(l *Lane) (*os.File, error) {
	p := l.Process
	if old := q.byPID[p.PID]; old != nil {
		// Either its pid was a dead process's, whose end we are about to be told. Or it is the same process, which asks once per image:
		// then it has called execve, and what the former image held went with its mappings.
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
		q.Damage(fmt.Errorf("lane %d cannot be given to process %d: %w", number, p.PID, err))
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

// Withdraw takes back a lane that Attach gave to a process which is not told of it. The process is the caller's again.
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
		l.Refusals.Begin(i, q.Ledger.Refusals(i, l.Number))
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
	// On another goroutine, since the watcher's has everybody to serve, and this one may have to wait for the lock.
	return q.Deaths.Watch(l.Process, func() { go q.died(l) })
}

// died gives back what a process held that has exited. It takes the lock. The slice's lane and the pool's are settled each for itself;
// neither waits for the other.
func (q *Quota) died(l *Lane) {
	q.Lock.Lock()
	defer q.Lock.Unlock()
	if !q.Has(l) {
		return // it was settled meanwhile, or the owner is gone
	}
	q.pass("death.seen")
	q.Settle(l)
}

// Settle ends a lane: what it held is given back.
func (q *Quota) Settle(l *Lane) {
	q.Deaths.Unwatch(l.Process)
	open := q.State == api.Active || q.State == api.Expired
	if open {
		q.comeBack(l)
		bytes, err := q.Ledger.Settle(l.Number, l.Generation)
		if err != nil {
			q.Damage(fmt.Errorf("lane %d of process %d cannot be settled: %w", l.Number, l.Process.PID, err))
		}
		for i, d := range q.Devices {
			if bytes[i] > 0 {
				q.Log.Debug("given back for a process", "device", d.Name, "pid", l.Process.PID, "bytes", bytes[i])
			}
		}
		q.pass("death.settled")
	}
	q.Owner.Settled(l)
	if open {
		q.Ledger.SetFree(l.Number)
	}
	q.disown(l)
	l.Process.Close()
}

// Has says whether a lane was not settled yet.
func (q *Quota) Has(l *Lane) bool { return l != nil && q.lanes[l.Number] == l }

// Of is the lane of a process; nil if it has none.
func (q *Quota) Of(pid int) *Lane { return q.byPID[pid] }

// Count is how many lanes processes have.
func (q *Quota) Count() int { return len(q.lanes) }

// Lanes are those that processes have.
func (q *Quota) Lanes() iter.Seq[*Lane] { return maps.Values(q.lanes) }

// Processes are the lanes by the processes' pids.
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
