// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report/lines"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// pool is a group of slices under one common quota. It has a ledger of its own, in which each process of a member has a lane besides that in its
// slice's ledger: a charge must fit both (interceptor/charge.h). Fields above mu do not change.
//
// Lanes are by process, not by slice: memory of processes that outlive their slice counts in the pool until they exit. So the pool has pidfds of its
// own for them.
type pool struct {
	e       *Enforcer
	log     *slog.Logger
	name    string
	created time.Time
	asked   api.PoolRequest // the request that created it
	holder  *admission.Holder

	generation uint64 // set before others know the pool

	desk // its turn orders changes of the pool: its quotas, devices and end. It is taken after a member's

	mu      guard.Mutex[guard.Pool] // taken after a slice's
	members map[*slice]struct{}     // until they are cleared away
	quotas  []api.Quota
	quota   *quota.Quota
	shares  map[*quota.Device]*shares
	totals  map[[16]byte]uint64 // bytes of the devices that members named
	changed []string            // devices with another limit, to be told
	kept    bool                // core counts bytes beyond a lowered limit
	op      uint64              // of core's last operation on its ledger. Changes in the turn
}

// shares are the enforcer's charges on a device for members.
type shares struct {
	beyond map[*slice]uint64            // charged in the member's own ledger, too: the driver's excess
	short  map[*slice]map[int]shortfall // by pid: bytes charged to its slice and not to the pool

	unheard map[*slice]struct{} // members with charges of the former enforcer that this one has not sampled yet
}

func (e *Enforcer) newPool(name string, created time.Time, asked api.PoolRequest) *pool {
	p := &pool{
		e: e, log: lines.Bound(e.log.With("pool", name)), name: name, created: created, asked: asked, quotas: asked.Quotas, desk: newDesk(),
		holder:  &admission.Holder{Name: "pool " + name, Pool: name, Tenant: asked.Tenant, Private: asked.ByGrant},
		members: make(map[*slice]struct{}), shares: make(map[*quota.Device]*shares), totals: make(map[[16]byte]uint64),
	}
	p.quota = quota.New(quota.Options{Log: p.log, Owner: p, Lock: &p.mu, Deaths: e.deaths, Pool: name})
	return p
}

// sharesOn returns the shares on a device; never nil. Called with mu held.
func (p *pool) sharesOn(d *quota.Device) *shares {
	if p.shares[d] == nil {
		p.shares[d] = &shares{beyond: make(map[*slice]uint64), short: make(map[*slice]map[int]shortfall)}
	}
	return p.shares[d]
}

// account returns the pool's record for admission. Called with mu held, or before the pool is registered.
func (p *pool) account() core.Record {
	return core.Record{
		Kind: core.Pool, ID: p.name, Tenant: p.asked.Tenant, Private: p.asked.ByGrant, Quotas: p.quotas, Limits: p.quota.Limits(),
		Kept: p.quota.Beyond(), Elastic: p.asked.Elastic, Priority: p.asked.Priority, Phase: core.Live,
	}
}

// recount has core count the restored pool by its ledger. Called in the pool's turn.
func (p *pool) recount() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.account()
	p.kept, p.op = len(r.Kept) > 0, p.e.book.Set(p.holder, r)
}

// setKept notes whether core counts bytes beyond the limits.
func (p *pool) setKept(bytes core.Bytes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = len(bytes) > 0
}

// reportUse tells core what the members hold, if it counts bytes beyond a lowered limit. Called in the pool's turn.
func (p *pool) reportUse() {
	p.mu.Lock()
	used, kept := p.quota.InUse(), p.kept && p.quota.State == api.Active
	p.mu.Unlock()
	if kept {
		p.e.note(p, core.Used{Generation: p.generation, Op: p.op, Bytes: used})
	}
}

// lasting returns the pool's permanent record, with these quotas.
func (p *pool) lasting(quotas []api.Quota) store.Pool {
	r := store.Pool{Name: p.name, Quotas: quotas, Created: p.created, Tenant: p.asked.Tenant, TTL: p.asked.TTL, Label: p.asked.Label, Elastic: p.asked.Elastic, Priority: p.asked.Priority, ByGrant: p.asked.ByGrant}
	if !slices.Equal(quotas, p.asked.Quotas) {
		r.Asked = p.asked.Quotas
	}
	return r
}

// stored returns the pool's record for this boot. Called with mu held, or before the pool is registered.
func (p *pool) stored() store.PoolState {
	var r store.PoolState
	if p.quota.Overwritten {
		r.Damaged = p.quota.Reason
	}
	if p.quota.Stored {
		r.Ledger = store.Ledger(p.quota.Identity)
	}
	for _, d := range p.quota.Devices {
		r.Limits = append(r.Limits, storedLimit(d, d.Granted(), d.Highest))
	}
	return r
}

// foresee returns the known devices that these quotas cover and the ledger lacks, or none if it cannot hold all. Other devices are added when a
// member's process uses them. Called with mu held, or before the pool is registered.
func (p *pool) foresee(quotas []api.Quota) []*quota.Device {
	return p.e.foresee(p.quota, func(g *devices.Device) (uint64, bool) { return quotaOn(quotas, g.Raw, g.Total) })
}

// covers reports whether a member may use a device at all.
func (p *pool) covers(raw [16]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return covering(p.quotas, raw) != nil
}

// poolOn returns the slice's pool with a quota on a device; nil if there is none.
func (s *slice) poolOn(raw [16]byte) *pool {
	for _, p := range s.pools {
		if p.covers(raw) {
			return p
		}
	}
	return nil
}

// poolLabels returns the labels of its pools.
func (s *slice) poolLabels() (labels []string) {
	for _, p := range s.pools {
		if p.asked.Label != "" {
			labels = append(labels, p.asked.Label)
		}
	}
	return labels
}

// addDevice adds a device to the pool's ledger, before a member's. Its error is a ledger.Status, or the disk's.
func (p *pool) addDevice(uuid driver.UUID, total uint64) error {
	if has, err := p.hasDevice(uuid.Raw); has || err != nil {
		return err
	}
	p.turn.Wait()
	defer p.turn.Give()
	if has, err := p.hasDevice(uuid.Raw); has || err != nil { // added in between
		return err
	}
	limit, err := mayAdd(p.quota, total, func() (uint64, bool) { return quotaOn(p.quotas, uuid.Raw, total) })
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.totals[uuid.Raw] = total
	p.mu.Unlock()
	err = p.e.command(p, func(client uint64) core.Command {
		return core.UseDevice{Client: client, Kind: core.Pool, ID: p.name, Device: uuid.String(), Bytes: limit}
	})
	if errors.Is(err, api.ErrQuotaExceeded) { // the device is in the ledger, with a limit of 0
		p.log.Warn("member uses a device on which the pool has no quota", "device", uuid, "err", err)
		err = nil
	}
	return err
}

// hasDevice reports whether the pool's ledger has a device. The error says why members get nothing.
func (p *pool) hasDevice(raw [16]byte) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quota.Index(raw) >= 0, refusal(p.quota)
}

// Damaged is called by the quota: members get nothing more from the pool. Called with mu held.
func (p *pool) Damaged() {
	p.log.Error("the pool's ledger is damaged: a process of a member overwrote it, or the pool is under attack; its members can charge nothing more until they are released and the pool is created again",
		"err", p.quota.Reason)
	if p.quota.Overwritten {
		p.tellOverwritten()
	} else {
		p.tellDenied(p.quota.Reason)
	}
	p.e.ends.Go(p.noteDamage)
}

// noteDamage has the damage stored for the next enforcer: the page may be gone by then.
func (p *pool) noteDamage() {
	p.turn.Wait()
	defer p.turn.Give()
	p.mu.Lock()
	gone, why := p.quota.State == quota.Left, p.quota.Reason
	p.mu.Unlock()
	if !gone {
		p.e.note(p, core.Tampered{Generation: p.generation, Why: why})
	}
}

// Ending is called by the quota when a lane ends.
func (p *pool) Ending(*quota.Lane) {}

// ContextBytes is called by the quota. The cost of contexts is in the members' ledgers.
func (p *pool) ContextBytes(*quota.Device) uint64 { return 0 }

// check compares the page with the enforcer's own copy.
func (p *pool) check() {
	if p.verify() && p.turn.TryTake() { // else at the next check
		p.reportUse()
		p.turn.Give()
	}
}

// verify does what check does without the turn, and reports whether core has to be told what the members hold.
func (p *pool) verify() (tell bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota.State != api.Active {
		return false
	}
	if err := p.quota.Verify(); err != nil {
		p.quota.Damage(err)
		return false
	}
	return p.kept
}

// leave drops the pool from memory without ending it.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quota.State = quota.Left
	if err := p.quota.Leave(); err != nil && !errors.Is(err, os.ErrClosed) {
		p.log.Error("pool not closed", "err", err)
	}
}

// accepts reports whether a request may name the pool.
func (p *pool) accepts(r *api.RegisterRequest) bool { return r.ByGrant || !p.asked.ByGrant }

// leaveTo fills in what a member inherits from the pool: tenant, time to live, and whether it is elastic.
func (p *pool) leaveTo(r *api.RegisterRequest) {
	if !p.accepts(r) {
		return
	}
	r.Tenant = cmp.Or(r.Tenant, p.asked.Tenant)
	if p.asked.Elastic {
		r.Elastic, r.Priority = true, p.asked.Priority
	}
	if ttl := p.asked.TTL; ttl != 0 && (r.TTL == 0 || r.TTL > ttl) {
		r.TTL = ttl
	}
}

// allowed returns the bytes that the slice may keep on a device of total bytes by its own quotas; false if it may not use it. A member without a
// quota of its own may keep what the pool has. Called with mu held, or before the slice is registered.
func (s *slice) allowed(raw [16]byte, total uint64) (uint64, bool) {
	return s.allowedBy(s.rec.Quotas, raw, total)
}

// allowedBy is allowed with other quotas.
func (s *slice) allowedBy(quotas []api.Quota, raw [16]byte, total uint64) (uint64, bool) {
	if len(s.pools) > 0 {
		if s.poolOn(raw) == nil {
			return 0, false
		}
		if len(quotas) == 0 {
			return ledger.NoLimit, true
		}
	}
	return quotaOn(quotas, raw, total)
}

// foresees reports whether the slice can have the device from its beginning: for a member, the pool's ledger has it.
func (s *slice) foresees(raw [16]byte) bool {
	p := s.poolOn(raw)
	if p == nil {
		return len(s.pools) == 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quota.Index(raw) >= 0
}

// limitOn returns the pool's limit on a device; 0 if it lacks it.
func (p *pool) limitOn(raw [16]byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index := p.quota.Index(raw); index >= 0 {
		return p.quota.Devices[index].Granted()
	}
	return 0
}

// highestOn returns the pool's highest limit so far on a device; 0 if it lacks it.
func (p *pool) highestOn(raw [16]byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index := p.quota.Index(raw); index >= 0 {
		return p.quota.Devices[index].HighestLimit()
	}
	return 0
}

// overLimit reports whether the members hold more than the limit on a device.
func (p *pool) overLimit(raw [16]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	index := p.quota.Index(raw)
	return index < 0 || p.quota.State != api.Active || p.quota.OverLimit(index)
}
