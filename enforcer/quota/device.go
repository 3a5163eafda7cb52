// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Device is one device of a Quota: its own copy of what it wrote to the page.
type Device struct {
	ledger.Device                // as on the page, but for the limit while it is frozen
	Name          string         // its UUID
	Highest       uint64         // of the limits before this one: stored before this one is on the page
	Inherited     uint64         // what a former enforcer had charged beyond the lanes
	Frozen        bool           // the page has 0 in place of the limit
	Seen          ledger.Figures // as Verify read them last

	account   *ledger.Account   // the enforcer's own lane
	suspended map[uint32]uint64 // by lane: what a checkpointed process is charged for. Limit is higher by it
}

// Granted is the limit without what checkpointed processes have lent.
func (d *Device) Granted() uint64 {
	if d.Limit == ledger.NoLimit {
		return d.Limit
	}
	return d.Limit - d.lent()
}

// HighestLimit is the highest limit that was ever in force.
func (d *Device) HighestLimit() uint64 { return max(d.Highest, d.Granted()) }

// SetLimit makes limit bytes what processes may hold, and notes the highest limit that was in force before. Write puts it into the ledger.
func (d *Device) SetLimit(limit, highest uint64) {
	d.Highest = max(d.Highest, highest)
	d.become(limit)
}

func (d *Device) become(limit uint64) {
	d.Limit, d.Quota = limit, min(limit, d.Total)
	if limit != ledger.NoLimit {
		d.Limit += d.lent() // may be charged beyond it
	}
	if limit == 0 {
		d.Quota = d.Total // it has no quota there: programs see the device, and nothing free
	}
}

// setLimit changes the page at once.
func (d *Device) setLimit(limit uint64) error {
	page := limit
	if d.Frozen {
		page = 0
	}
	if err := d.account.Limit(page); err != nil {
		return err
	}
	d.Limit = limit
	return nil
}

// onPage is the device as the page has it.
func (d *Device) onPage() ledger.Device {
	device := d.Device
	if d.Frozen {
		device.Limit = 0
	}
	return device
}
