// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Device is one device of a Quota, with a copy of what was written to the page.
type Device struct {
	ledger.Device                // as in the page, except for the limit while frozen
	Name          string         // the UUID
	Highest       uint64         // highest earlier limit, stored before the page gets a new one
	Inherited     uint64         // bytes that an earlier enforcer had charged in lane 0
	Frozen        bool           // the page has limit 0
	Seen          ledger.Figures // by the last Verify

	account   *ledger.Account   // lane 0, the enforcer's
	suspended map[uint32]uint64 // bytes charged for each checkpointed process, by lane; Limit includes them
}

// Granted returns the limit without the bytes lent by checkpointed processes.
func (d *Device) Granted() uint64 {
	if d.Limit == ledger.NoLimit {
		return d.Limit
	}
	return d.Limit - d.lent()
}

// HighestLimit returns the highest limit that was ever in force.
func (d *Device) HighestLimit() uint64 { return max(d.Highest, d.Granted()) }

// SetLimit sets the limit, in bytes, and records the highest earlier one. Write writes it to the ledger.
func (d *Device) SetLimit(limit, highest uint64) {
	d.Highest = max(d.Highest, highest)
	d.become(limit)
}

func (d *Device) become(limit uint64) {
	d.Limit, d.Quota = limit, min(limit, d.Total)
	if limit != ledger.NoLimit {
		d.Limit += d.lent() // lent bytes may be charged in addition
	}
	if limit == 0 {
		d.Quota = d.Total // no quota on this device: programs see it with no free memory
	}
}

// setLimit changes the page's limit at once.
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

// onPage returns the device as the page has it.
func (d *Device) onPage() ledger.Device {
	device := d.Device
	if d.Frozen {
		device.Limit = 0
	}
	return device
}
