// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// The memory of a suspended slice's processes is on no device (SendAway). Their lanes stay as they are, since only their owners may write them.
// The slice's own limit stays, too: their calls charge, and wait in the driver until they are back. In the ledger of a pool the limit is raised by
// what they hold (Suspend), so that other members may take that. It is lowered before they come back, or a lane is settled.
//
// A restart lowers a pool's limit, since only the page says which processes are away. They come back when what they hold fits again.

// lent is what processes that are away are charged for on the device: bytes of the page's limit, and of what is used there, that
// are nobody's.
func (d *Device) lent() uint64 {
	var sum uint64
	for _, bytes := range d.suspended {
		sum += bytes
	}
	return sum
}

// Lends says whether others may have what a lane is charged for.
func (d *Device) Lends(number uint32) bool { return d.suspended[number] > 0 }

// SendAway is for a process of a slice that is suspended as a whole: what it is charged for is on no device until BringBack, but for what it has
// left there, in bytes by device. That it is gone from there is the caller's to know.
func (q *Quota) SendAway(l *Lane, left map[string]uint64) { q.away[l.Number] = left }

// BringBack has what all processes are charged for be on the devices again. It is called before it is.
func (q *Quota) BringBack() { clear(q.away) }

// IsAway says whether SendAway was called for a lane.
func (q *Quota) IsAway(number uint32) bool {
	_, away := q.away[number]
	return away
}

// Away is what processes that SendAway was called for are charged for on a device, without what they have left there.
func (q *Quota) Away(index int) (bytes uint64) {
	for number := range q.away {
		bytes += q.OnHost(index, number)
	}
	return bytes
}

// OnHost is that of one process; 0 if it is not away.
func (q *Quota) OnHost(index int, number uint32) uint64 {
	left, away := q.away[number]
	if !away {
		return 0
	}
	held := q.Ledger.Held(index, number)
	return held - min(held, left[q.Devices[index].Name])
}

// suspend changes what a lane has lent, and the limit with it, if there is one.
func (d *Device) suspend(number uint32, bytes uint64) error {
	limit := d.Limit
	if limit != ledger.NoLimit {
		limit += bytes - d.suspended[number]
	}
	if err := d.setLimit(limit); err != nil {
		return err
	}
	if bytes == 0 {
		delete(d.suspended, number)
	} else {
		d.suspended[number] = bytes
	}
	return nil
}

// Suspend lets others have what a process is charged for. The caller knows that it is gone from the devices.
func (q *Quota) Suspend(l *Lane) error {
	l.Lent = false
	q.Ledger.SetSuspended(l.Number) // first: by that the next enforcer knows why a limit is higher
	killpoint.Pass("suspend.marked")
	for i, d := range q.Devices {
		if err := d.suspend(l.Number, q.Ledger.Held(i, l.Number)); err != nil {
			q.Damage(fmt.Errorf("the limit on device %s cannot be raised: %w", d.Name, err))
			return ledger.StatusClosed
		}
		killpoint.Pass("suspend.raised")
	}
	return nil
}

// Resume takes back what Suspend gave on all devices, or returns ledger.StatusRefused. was says whether anything was lent.
func (q *Quota) Resume(l *Lane) (was bool, err error) {
	if l.Lent && q.exceeded(l) {
		return false, ledger.StatusRefused
	}
	bytes := make(map[*Device]uint64)
	for i, d := range q.Devices {
		n := d.suspended[l.Number]
		if n == 0 {
			continue
		}
		bytes[d] = n
		err := d.suspend(l.Number, 0)
		if err == nil && (d.Frozen || q.OverLimit(i)) {
			err = ledger.StatusRefused
		}
		if err != nil {
			for d, n := range bytes {
				_ = d.suspend(l.Number, n) // the next check sees a failure
			}
			return false, err
		}
	}
	l.Lent = false
	q.Ledger.SetLive(l.Number)
	return len(bytes) > 0, nil
}

// exceeded says whether more than the limit is charged on a device on which the lane holds something.
func (q *Quota) exceeded(l *Lane) bool {
	for i, d := range q.Devices {
		if q.Ledger.Held(i, l.Number) > 0 && (d.Frozen || q.OverLimit(i)) {
			return true
		}
	}
	return false
}

// comeBack is for a lane that is about to be settled.
func (q *Quota) comeBack(l *Lane) {
	for _, d := range q.Devices {
		if d.suspended[l.Number] == 0 {
			continue
		}
		if err := d.suspend(l.Number, 0); err != nil {
			q.Damage(fmt.Errorf("the limit on device %s cannot be lowered: %w", d.Name, err))
		}
	}
}
