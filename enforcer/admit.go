// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
	"maps"
	"math/bits"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Admission is what the devices of a host may be given away of. What it refuses is refused at the door: a quota that
// was given is kept, so that quotas which add up to more than a device has would be kept to nobody.
type Admission struct {
	// Overcommit is how much may be given of each byte, in thousandths; 0 is 1000, which is each byte once.
	Overcommit uint64
	Reserve    uint64    // bytes of each device that are nobody's quota
	MaxVRAM    api.Share // the most that one slice may ask for, on each device; zero is no bound
	// Tenants are the most that all slices of a tenant may be given together, on each device. DefaultTenant's is that of
	// each tenant who has none, and of the slices without a tenant together.
	Tenants map[string]api.Share
}

// DefaultTenant names the bound of tenants who have none of their own.
const DefaultTenant = "default"

// capacity is how many bytes of a device of total bytes may be given.
func (a *Admission) capacity(total uint64) uint64 {
	overcommit := a.Overcommit
	if overcommit == 0 {
		overcommit = 1000
	}
	high, low := bits.Mul64(total-min(total, a.Reserve), overcommit)
	if high >= 1000 {
		return ^uint64(0)
	}
	bytes, _ := bits.Div64(high, low, 1000)
	return bytes
}

// tenant is the bound of a tenant.
func (a *Admission) tenant(name string) api.Share {
	if share, ok := a.Tenants[name]; ok {
		return share
	}
	return a.Tenants[DefaultTenant]
}

// holder is to whom bytes of devices are given: a slice, or what several slices draw on.
type holder interface {
	called() string // in a refusal, for people
	// tenant to whom what is given is accounted. Unless bounded, it is nobody's, and Admission.MaxVRAM does not hold for it.
	tenant() (name string, bounded bool)
}

func (s *slice) called() string {
	name := s.request.Container
	if name == "" {
		name = s.request.ID
	}
	const short, full = 12, 64 // of an id that an engine made up, as engines show it
	if len(name) == full {
		name = name[:short]
	}
	return name
}

func (s *slice) tenant() (string, bool) { return s.request.Tenant, true }

// book says what is given of each device, and to whom. Its lock is taken last, whatever else is locked, and never held
// over anything that waits.
type book struct {
	mu      guard.Mutex[guard.Book]
	devices map[string]*given // by UUID
}

// given of one device, in bytes. The sums are of what holders have.
type given struct {
	sum     uint64
	tenants map[string]uint64 // of those that are bounded
	holders map[holder]uint64 // none has 0
}

// set what a holder has. Called with mu held.
func (b *book) set(uuid string, h holder, bytes uint64) {
	g := b.devices[uuid]
	if g == nil {
		if bytes == 0 {
			return
		}
		g = &given{tenants: make(map[string]uint64), holders: make(map[holder]uint64)}
		if b.devices == nil {
			b.devices = make(map[string]*given)
		}
		b.devices[uuid] = g
	}
	// Without driver truth a size may be anybody's word. Sums that overflow come back when it is taken off again.
	change := bytes - g.holders[h]
	g.sum += change
	if tenant, bounded := h.tenant(); bounded {
		if g.tenants[tenant] += change; g.tenants[tenant] == 0 {
			delete(g.tenants, tenant)
		}
	}
	if g.holders[h] = bytes; bytes == 0 {
		delete(g.holders, h)
	}
}

// admit gives a holder what it wants, in bytes by device: on all of them, or on none and says why (an *api.Error). What it
// has beyond that it keeps: who lowers a quota calls commit when the lower one is in force. So is what was given and then
// could not be used: commit puts back what was before.
//
// Without driver truth nobody knows how much there is, and nothing is refused for what others have.
func (e *Enforcer) admit(h holder, wants map[string]uint64) error {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(wants)) { // so that the same request is refused for the same reason
		if err := e.mayHave(h, uuid, wants[uuid]); err != nil {
			return err
		}
	}
	for uuid, bytes := range wants {
		if g := e.book.devices[uuid]; g == nil || bytes > g.holders[h] {
			e.book.set(uuid, h, bytes)
		}
	}
	return nil
}

// commit notes what a holder has from now on, in bytes by device, and nothing on any other. It asks nobody: what is so
// is noted.
func (e *Enforcer) commit(h holder, has map[string]uint64) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	for uuid := range e.book.devices {
		if _, keeps := has[uuid]; !keeps {
			e.book.set(uuid, h, 0)
		}
	}
	for uuid, bytes := range has {
		e.book.set(uuid, h, bytes)
	}
}

// has is what a holder was given, by device.
func (e *Enforcer) has(h holder) map[string]uint64 {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	has := make(map[string]uint64)
	for uuid, g := range e.book.devices {
		if bytes := g.holders[h]; bytes > 0 {
			has[uuid] = bytes
		}
	}
	return has
}

// showGiven fills in what was given of a device.
func (e *Enforcer) showGiven(d *api.Device) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	if given := e.book.devices[d.UUID]; given != nil {
		d.Quotas, d.Slices = given.sum, len(given.holders)
	}
	if g := e.gpuOf(d.UUID); g != nil {
		capacity := e.options.Admission.capacity(g.Total)
		free := capacity - min(capacity, d.Quotas)
		d.Reserve, d.Free = min(e.options.Admission.Reserve, g.Total), &free
	}
}

// mayHave says why a holder may not have so many bytes of a device. Called with the book's mu held.
func (e *Enforcer) mayHave(h holder, uuid string, bytes uint64) error {
	given := e.book.devices[uuid]
	if given == nil {
		given = &noneGiven
	}
	had := given.holders[h]
	if bytes <= had {
		return nil // it was given, and is not taken away
	}
	g := e.gpuOf(uuid)
	a := &e.options.Admission
	r := refused{device: g.called(uuid), uuid: uuid, who: h.called(), bytes: bytes}
	if name, bounded := h.tenant(); bounded {
		if most, known := boundOn(a.MaxVRAM, g); known && bytes > most {
			return r.bySize(most)
		}
		if most, known := boundOn(a.tenant(name), g); known && bytes > most-min(most, given.tenants[name]-had) {
			return r.byTenant(name, most, given.tenants[name]-had, given.rest(h, name))
		}
	}
	if g == nil {
		return nil
	}
	if capacity := a.capacity(g.Total); bytes > capacity-min(capacity, given.sum-had) {
		return r.byDevice(capacity, given.sum-had, given.rest(h, everyTenant))
	}
	return nil
}

// TenantBounds are the most bytes that all slices of a tenant may be given together, by device; none without a bound, nor without driver
// truth.
func (e *Enforcer) TenantBounds(tenant string) map[string]uint64 {
	bounds := make(map[string]uint64)
	if e.truth == nil {
		return bounds
	}
	for _, g := range e.truth.devices {
		if most, known := boundOn(e.options.Admission.tenant(tenant), g); known {
			bounds[g.UUID] = most
		}
	}
	return bounds
}

var noneGiven given

// boundOn is a bound in bytes on a device; not known if there is none, or if it is a share of a device whose size nobody knows.
func boundOn(s api.Share, g *gpu) (most uint64, known bool) {
	switch {
	case s.IsZero(), g == nil && s.Percent > 0:
		return 0, false
	case g == nil:
		return s.Bytes, true
	default:
		return s.Of(g.Total), true
	}
}

// gpuOf is a device by its UUID; nil without driver truth.
func (e *Enforcer) gpuOf(uuid string) *gpu {
	if e.truth == nil {
		return nil
	}
	for _, g := range e.truth.devices {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}

// commitment is what a slice is given of each device while it can charge: its quota, or the whole device if that is less (a
// quota on all devices may be larger than one of them). That its processes hold less, or that some are checkpointed, changes
// nothing. Called with mu held, or before anybody knows the slice.
func (s *slice) commitment() map[string]uint64 {
	if !s.counts() {
		return make(map[string]uint64)
	}
	return promised(s.devices)
}

// recommit notes what the slice is given by the quotas that are in force now. Where less than it uses, it has what it uses, and
// less as that becomes less, which the regular look sees: it can get no more of it, and who were given it would find
// the device full. Called with mu held.
func (s *slice) recommit() {
	has, had := s.commitment(), s.e.has(s)
	s.lowered = keepUsed(has, had, s.devices, s.usedOn)
	s.e.commit(s, has)
}

// usedOn is what processes that are not checkpointed are charged for on a device, by the page's word. Called with mu held.
func (s *slice) usedOn(index int) uint64 {
	if s.ledger == nil || index >= s.ledger.DeviceCount() {
		return 0
	}
	used := s.figures(index).Used
	return used - min(used, s.devices[index].away())
}

// counts says whether the slice's quotas are given to itself: one that nothing is refused to is promised nothing, and
// those of a pool's members are parts of the pool's.
func (s *slice) counts() bool { return !s.record() && s.pool == nil }

// admitDevice is admit for a device that a slice was not known to use. Called with mu held.
func (s *slice) admitDevice(uuid string, bytes uint64) error {
	if !s.counts() {
		return nil
	}
	return s.e.admit(s, map[string]uint64{uuid: bytes})
}

// remainder is what a released slice still counts for, until it is cleared away: what those who are alive held when it was closed.
// It can become no more, and by how much it becomes less nobody looks any more; whoever got those bytes would find the device
// full. A slice that holds nothing gets nothing, and counts for nothing. What its page says can be a process's own
// word, and memory that a dead process lent is another's by now: the driver is asked. If it does not say, or if the page is damaged, all
// that the slice was given counts. Called with change and mu held.
func (s *slice) remainder() map[string]uint64 {
	has := s.commitment()
	for uuid, bytes := range s.e.has(s) {
		has[uuid] = max(has[uuid], bytes)
	}
	ask := s.counts() && s.e.truth != nil && s.lingers()
	switch {
	case s.state == api.Damaged, s.ledger == nil && (!ask || s.request.Session):
		return has
	case !ask:
		for i, d := range s.devices {
			has[d.uuid] = min(has[d.uuid], s.usedOn(i))
		}
		return has
	}
	holders, err := s.holders() // first: what the last of them lent, if he ends meanwhile, is another's when the driver is asked
	for i, d := range s.devices {
		var held uint64
		if err == nil {
			held, err = s.stillOn(i, holders)
		}
		if err == nil {
			has[d.uuid] = min(has[d.uuid], held)
			continue
		}
		s.log.Warn("it is not known what the slice's processes hold: all that it was given counts", "device", d.uuid, "err", err)
		if errors.Is(err, errUntold) {
			err = nil // of the others it may be
		}
	}
	return has
}

// holders are the living processes that may hold what a slice that ends was given, each with its lanes. Called with change and mu
// held.
func (s *slice) holders() (map[int][]uint32, error) {
	all := make(map[int][]uint32)
	for _, p := range s.remaining.All() {
		all[p.PID] = nil
	}
	for _, d := range s.devices {
		for pid := range d.driver {
			all[pid] = nil
		}
	}
	if !s.request.Session {
		pids, err := cgroup.PIDs(s.cgroup)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			all[pid] = nil
		}
	}
	for number, l := range s.lanes {
		if l.process.Alive() {
			all[l.process.PID] = append(all[l.process.PID], number)
		}
	}
	if s.ledger == nil || len(s.lanes) > 0 {
		return all, nil
	}
	for number := uint32(1); number <= s.ledger.HighLane(); number++ { // nobody has taken them up: finish
		owner, _, live := s.ledger.Lane(number)
		if !live {
			continue
		}
		if p, err := process.Again(owner.PID, owner.Start); err == nil {
			all[p.PID] = append(all[p.PID], number)
			p.Close()
		}
	}
	return all, nil
}

// stillOn is what they hold on a device: each what the driver says, or its lanes if that is more. Who is checkpointed holds nothing,
// and gets nothing back. Called with change and mu held.
func (s *slice) stillOn(index int, holders map[int][]uint32) (bytes uint64, err error) {
	d := s.devices[index]
	g := s.e.truth.device(d.UUID)
	if g == nil || !s.e.tells(d.UUID) {
		return 0, errUntold
	}
	truth, err := s.e.truth.processes(g, patienceOfRelease)
	if err != nil {
		s.e.failing(g, err)
		return 0, err
	}
	known := s.ledger != nil && index < s.ledger.DeviceCount()
	var past uint64 // the ledger
	for pid, lanes := range holders {
		var charged uint64
		for _, number := range lanes {
			if _, away := d.suspended[number]; known && !away {
				charged += s.ledger.Held(index, number)
			}
		}
		if truth[pid] == driver.Unknown {
			return 0, errUntold
		}
		bytes += max(charged, truth[pid])
		past += truth[pid] - min(charged, truth[pid])
	}
	if known && d.driver == nil && s.request.Session { // who held it was not noted by the enforcer before this one
		held := s.ledger.Held(index, 0)
		bytes += held - min(held, past)
	}
	return bytes, nil
}

// admitSlice is admit for one that is about to be made. Those whose end nobody has noticed yet are not in its way. Called
// with change held.
func (e *Enforcer) admitSlice(s *slice) error {
	s.devices = s.foresee()
	wants := s.commitment()
	err := e.admit(s, wants)
	if err == nil {
		return nil
	}
	for _, other := range e.all() {
		// A cgroup is not looked at for each of thousands that are as alive as they seem.
		if !process.Exists(other.request.PID) {
			e.releaseEnded(other)
		}
	}
	for other := range e.lingering {
		if !other.lingers() {
			e.clear(other)
		}
	}
	return e.admit(s, wants)
}

// underMost says why a slice may not ask for so much without driver truth, when its devices are not known before they are used. Two
// shares can be compared, and two sizes.
func (e *Enforcer) underMost(who string, r *api.RegisterRequest) error {
	most := e.options.Admission.MaxVRAM
	if e.truth != nil || most.IsZero() || r.Mode == api.Record {
		return nil
	}
	for _, q := range r.Quotas {
		asked := api.Share{Bytes: q.Bytes, Percent: q.Percent}
		if (asked.Percent > 0) != (most.Percent > 0) {
			return api.Errorf(api.CodeQuotaExceeded, "%s asks for %s, and a slice may have %s of a device at most (max_vram): without NVML nobody knows which of them is more", who, asked, most)
		}
		if asked.Bytes > most.Bytes || asked.Percent > most.Percent {
			refusal := api.Errorf(api.CodeQuotaExceeded, "%s asks for %s, and a slice may have %s of a device at most (max_vram): ask for less", who, asked, most)
			refusal.Requested, refusal.Limit = asked.Bytes, most.Bytes
			return refusal
		}
	}
	return nil
}

// sayOvergiven says of which devices more is given than may be: the configuration was changed, or a device. Nothing is
// taken away for that.
func (e *Enforcer) sayOvergiven() {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	if e.truth == nil {
		return
	}
	for _, g := range e.truth.devices {
		given := e.book.devices[g.UUID]
		if given == nil {
			continue
		}
		if capacity := e.options.Admission.capacity(g.Total); given.sum > capacity {
			e.log.Warn("slices were given more of a device than may be given by now: they keep it, and no other gets any of it until enough of them have ended",
				"device", g.UUID, "given", given.sum, "limit", capacity)
		}
		for name, bytes := range given.tenants {
			if most, known := boundOn(e.options.Admission.tenant(name), g); known && bytes > most {
				e.log.Warn("a tenant's slices were given more of a device than it may have by now: they keep it, and the tenant gets no more",
					"tenant", name, "device", g.UUID, "given", bytes, "limit", most)
			}
		}
	}
}
