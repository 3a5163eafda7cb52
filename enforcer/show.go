// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// Slices shows all slices, by id, without their processes.
func (e *Enforcer) Slices(context.Context) ([]api.Slice, error) {
	return e.showEach(anyones, briefly), nil
}

// SlicesOf shows those of a user.
func (e *Enforcer) SlicesOf(uid uint32) []api.Slice { return e.showEach(ofUser(uid), briefly) }

func briefly(s *slice) api.Slice { return s.show(false) }

func (e *Enforcer) showEach(which func(*slice) bool, show func(*slice) api.Slice) []api.Slice {
	all := slices.DeleteFunc(e.all(), func(s *slice) bool { return !which(s) })
	slices.SortFunc(all, func(a, b *slice) int { return cmp.Compare(a.id(), b.id()) }) // first, since shown slices are large to move
	shown := make([]api.Slice, 0, len(all))
	for _, s := range all {
		shown = append(shown, show(s))
	}
	return shown
}

// commandsPatience bounds the time for the command lines of a list. A process with an unread line is shown by its name then.
const commandsPatience = time.Second

// SlicesWithCommands shows all slices with the command lines of their first processes.
func (e *Enforcer) SlicesWithCommands(ctx context.Context) ([]api.Slice, error) {
	return e.showCommands(ctx, anyones), nil
}

// SlicesWithCommandsOf shows those of a user.
func (e *Enforcer) SlicesWithCommandsOf(ctx context.Context, uid uint32) []api.Slice {
	return e.showCommands(ctx, ofUser(uid))
}

func (e *Enforcer) showCommands(ctx context.Context, which func(*slice) bool) []api.Slice {
	ctx, cancel := context.WithTimeout(ctx, commandsPatience)
	defer cancel()
	return e.showEach(which, func(s *slice) api.Slice {
		shown := s.show(false)
		shown.Command = api.BoundedText(e.lines.Of(ctx, shown.PID, s.group.Start))
		return shown
	})
}

// Released shows the slices released with living processes, by id: they get nothing more, and what they hold still counts.
func (e *Enforcer) Released(context.Context) ([]api.Slice, error) {
	return e.showReleased(anyones), nil
}

// ReleasedOf shows those of a user.
func (e *Enforcer) ReleasedOf(uid uint32) []api.Slice { return e.showReleased(ofUser(uid)) }

func (e *Enforcer) showReleased(which func(*slice) bool) []api.Slice {
	shown := []api.Slice{}
	for _, s := range e.allReleased() {
		if which(s) {
			shown = append(shown, s.showRemainder())
		}
	}
	slices.SortFunc(shown, func(a, b api.Slice) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Generation, b.Generation))
	})
	return shown
}

// showRemainder shows a released slice with its living processes and what they count for.
func (s *slice) showRemainder() api.Slice {
	shown := s.show(false)
	shown.State, shown.Reason = api.Released, "it was released while processes were alive: they get no more memory, and their memory counts until they exit"
	var pids []int
	if s.request.Session {
		for _, p := range s.group.Remaining() {
			if p.Alive() {
				pids = append(pids, p.PID)
			}
		}
	} else if all, err := cgroup.PIDs(s.group.Cgroup); err == nil {
		pids = all
	}
	slices.Sort(pids)
	shown.ProcessCount = len(pids)
	for _, pid := range pids {
		shown.Processes = append(shown.Processes, api.Process{PID: pid, Devices: []api.ProcessUse{}})
	}
	has := s.e.book.Has(s.holder, false)
	for _, uuid := range slices.Sorted(maps.Keys(has)) {
		use := api.DeviceUse{Device: uuid, Index: -1, Used: has[uuid], Limit: has[uuid], Peak: has[uuid], Enforcement: s.enforcementOn(uuid)}
		if g := s.e.gpuOf(uuid); g != nil {
			use.Index, use.Name = g.Index, g.Name
		}
		shown.Devices = append(shown.Devices, use)
	}
	return shown
}

// Slice shows one slice with its processes.
func (e *Enforcer) Slice(_ context.Context, id string) (api.Slice, error) {
	if s := e.find(id); s != nil {
		shown := s.show(true)
		e.describe(&shown)
		return shown, nil
	}
	return api.Slice{}, noSlice(id)
}

// Devices shows the host's devices and their memory in use; without driver truth, the devices that slices have named. Without a recent sample it waits
// for the driver, for a short time.
func (e *Enforcer) Devices(ctx context.Context) ([]api.Device, error) {
	shown, err := e.GivenDevices(ctx)
	if e.truth != nil {
		e.showOccupied(shown)
	}
	return shown, err
}

// GivenDevices is Devices without the memory in use. It never waits.
func (e *Enforcer) GivenDevices(context.Context) ([]api.Device, error) {
	shown := []api.Device{}
	e.observeAll()
	index := make(map[[16]byte]int)
	if e.truth != nil {
		for _, g := range e.truth.All() {
			index[g.Raw] = len(shown)
			_, cost := e.truth.Context(g)
			d := api.Device{UUID: g.UUID, Index: g.Index, Name: g.Name, Total: g.Total, Context: cost, PCI: g.PCI, ComputeCapability: g.Capability}
			if g.Minor >= 0 {
				d.Minor = &g.Minor
			}
			e.showGranted(&d)
			d.Enforcement, d.EnforcementReason = e.native.Enforces(g.UUID)
			shown = append(shown, d)
		}
	}
	for _, s := range e.all() {
		s.mu.Lock()
		for i, d := range s.quota.Devices {
			var away uint64
			if s.quota.Ledger != nil {
				away = s.quota.Away(i)
			}
			if at, known := index[d.UUID]; known {
				shown[at].Suspended += away
				continue
			}
			index[d.UUID] = len(shown)
			named := api.Device{UUID: d.Name, Index: -1, Total: d.Total, Suspended: away}
			e.showGranted(&named)
			named.Enforcement, named.EnforcementReason = e.native.Enforces(d.Name)
			shown = append(shown, named)
		}
		s.mu.Unlock()
	}
	return shown, nil
}

func (s *slice) show(processes bool) api.Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.request
	shown := api.Slice{
		ID: r.ID, Generation: s.generation, State: s.quota.State, Reason: s.quota.Reason, Mode: r.Mode,
		Pools: r.Pools, Tenant: r.Tenant, Container: r.Container, Names: r.Names, PoolLabels: s.poolLabels(), Session: r.Session, PID: r.PID, UID: s.holder.UID,
		Quotas: append([]api.Quota{}, s.rec.Quotas...), Created: s.created, Devices: []api.DeviceUse{}, ProcessCount: s.quota.Count(),
	}
	s.showLease(&shown)
	if s.quota.State == quota.Left {
		shown.State = api.Active
	}
	if s.quota.Frozen != "" && shown.State == api.Active {
		shown.State, shown.Reason = api.Frozen, s.quota.Frozen
	}
	s.showSuspension(&shown)
	s.showElastic(&shown)
	if !r.Session {
		shown.Cgroup = s.group.Cgroup.String()
	}
	if processes {
		shown.Refusal = s.refused
	}
	if s.quota.Ledger == nil {
		return shown
	}
	for i, d := range s.quota.Devices {
		shown.Devices = append(shown.Devices, s.showDevice(i, d))
	}
	if processes {
		shown.Processes = s.showProcesses()
	}
	return shown
}

// showDevice returns the slice's use of a device. Called with mu held.
func (s *slice) showDevice(index int, d *quota.Device) api.DeviceUse {
	f, overhead := s.quota.Shown(index)
	use := api.DeviceUse{
		Device: d.Name, Index: -1, Used: f.Used - overhead, Overhead: overhead, Peak: f.Peak,
		Allocations: f.Allocations, Refusals: f.Refusals, Recovered: f.Recovered, Suspended: s.quota.Away(index),
	}
	if p := s.poolOn(d.UUID); p != nil {
		use.Pool = p.name
	}
	use.Limit = s.limit(d)
	use.Enforcement = s.enforcementOn(d.Name)
	if s.isSampled() {
		use.Bypass = s.found[d.UUID].past(d.Total)
	}
	if g := s.e.gpuOf(d.Name); g != nil {
		use.Index, use.Name = g.Index, g.Name
	}
	return use
}

// showProcesses returns the slice's processes. Called with mu held.
func (s *slice) showProcesses() []api.Process {
	byPID := make(map[int]*api.Process)
	process := func(pid int) *api.Process {
		if byPID[pid] == nil {
			byPID[pid] = &api.Process{PID: pid, Attached: s.quota.Of(pid) != nil, Devices: []api.ProcessUse{}}
		}
		return byPID[pid]
	}
	for pid := range s.quota.Processes() {
		process(pid)
	}
	for i, d := range s.quota.Devices {
		pids := make(map[int]bool)
		for pid := range s.quota.Processes() {
			pids[pid] = true
		}
		var sampled map[int]use
		if f := s.found[d.UUID]; f != nil {
			sampled = f.processes
		}
		for pid, u := range sampled {
			if u.driver != nil || u.charged > 0 {
				pids[pid] = true
			}
		}
		for pid := range pids {
			use := api.ProcessUse{Device: d.Name}
			if l := s.quota.Of(pid); l != nil {
				use.Suspended = s.quota.OnHost(i, l.Number)
				held := s.quota.Ledger.Held(i, l.Number)
				held -= min(held, use.Suspended)
				use.Overhead = min(held, s.quota.Ledger.Context(i, l.Number))
				use.Used = held - use.Overhead
			}
			u := sampled[pid]
			use.Overhead += u.charged
			use.Driver = u.driver
			if u.cause != "" && s.isSampled() {
				process(pid).Bypass = u.cause
			}
			if use.Used > 0 || use.Overhead > 0 || use.Suspended > 0 || use.Driver != nil {
				p := process(pid)
				p.Devices = append(p.Devices, use)
			}
		}
	}
	shown := []api.Process{}
	for _, p := range byPID {
		shown = append(shown, *p)
	}
	slices.SortFunc(shown, func(a, b api.Process) int { return cmp.Compare(a.PID, b.PID) })
	return shown
}
