// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// The memory of a suspended slice's processes is on no device (SendAway). Their lanes keep their charges, since only a lane's owner may
// write it. The slice's own limit does not change either: a call of such a process charges, and waits in the driver until its memory is
// back. In a pool's ledger the limit is raised by the processes' bytes (Suspend), so that other members may take them. The limit is lowered
// before their memory comes back, or before a lane is settled.
//
// A restart lowers a pool's limit, since only the page tells which processes are away. Their memory comes back when it fits again.

// lent returns the bytes charged for processes that are away. They are part of the page's limit and of its used bytes, and belong to no
// process.
func (d *Device) lent() uint64 {
	var sum uint64
	for _, bytes := range d.suspended {
		sum += bytes
	}
	return sum
}

// Lends reports whether other processes may have the bytes of a lane.
func (d *Device) Lends(number uint32) bool { return d.suspended[number] > 0 }

// SendAway marks a process of a slice that is suspended as a whole: until BringBack, its charges are on no device, except for left, in
// bytes by device. The caller has checked that its memory is gone.
func (q *Quota) SendAway(l *Lane, left map[string]uint64) { q.away[l.Number] = left }

// BringBack makes the charges of all processes count on the devices again. Call it before their memory returns.
func (q *Quota) BringBack() { clear(q.away) }

// IsAway reports whether a lane is marked by SendAway.
func (q *Quota) IsAway(number uint32) bool {
	_, away := q.away[number]
	return away
}

// Away returns the bytes charged on a device for processes that are away, without those that they left there.
func (q *Quota) Away(index int) (bytes uint64) {
	for number := range q.away {
		bytes += q.OnHost(index, number)
	}
	return bytes
}

// OnHost returns the bytes of one process that Away counts, or 0 if it is not away.
func (q *Quota) OnHost(index int, number uint32) uint64 {
	left, away := q.away[number]
	if !away {
		return 0
	}
	held := q.Ledger.Held(index, number)
	return held - min(held, left[q.Devices[index].Name])
}

// suspend changes the lent bytes of a lane, and the limit accordingly, if there is one.
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

// Suspend lends the bytes of a process to others. The caller has checked that its memory is gone from the devices.
func (q *Quota) Suspend(l *Lane) error {
	l.Lent = false
	q.Ledger.SetSuspended(l.Number) // first, so that the next enforcer knows why a limit is higher
	killpoint.Pass("suspend.marked")
	for i, d := range q.Devices {
		if err := d.suspend(l.Number, q.Ledger.Held(i, l.Number)); err != nil {
			q.Damage(fmt.Errorf("cannot raise the limit on device %s: %w", d.Name, err))
			return ledger.StatusClosed
		}
		killpoint.Pass("suspend.raised")
	}
	return nil
}

// Resume takes back the bytes lent by Suspend on all devices, or returns ledger.StatusRefused. was reports whether any were lent.
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
				_ = d.suspend(l.Number, n) // the next check detects a failure
			}
			return false, err
		}
	}
	l.Lent = false
	q.Ledger.SetLive(l.Number)
	return len(bytes) > 0, nil
}

// exceeded reports whether a device on which the lane holds bytes is over its limit.
func (q *Quota) exceeded(l *Lane) bool {
	for i, d := range q.Devices {
		if q.Ledger.Held(i, l.Number) > 0 && (d.Frozen || q.OverLimit(i)) {
			return true
		}
	}
	return false
}

// comeBack takes back the lent bytes of a lane before it is settled.
func (q *Quota) comeBack(l *Lane) {
	for _, d := range q.Devices {
		if d.suspended[l.Number] == 0 {
			continue
		}
		if err := d.suspend(l.Number, 0); err != nil {
			q.Damage(fmt.Errorf("cannot lower the limit on device %s: %w", d.Name, err))
		}
	}
}
