//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// changeQuota raises or lowers a running slice's quota, perhaps below its use.
func changeQuota(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active && !s.elastic })
	if s == nil {
		return false
	}
	limit := quota(r)
	w.say("%s gets %d instead of %d", s.id, limit, s.limit)
	_, err := w.client.Change(w.Context(), s.id, api.ChangeRequest{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: limit}}})
	switch {
	case err == nil:
		s.limit = limit
	case w.mayFail == "":
		w.fail("change the quota of %s: %v", s.id, err)
	default:
		w.say("… %v", err)
		if w.mayBe(err) {
			s.others = append(s.others, limit)
		}
	}
	return true
}

// mayBe reports whether a failed change may still apply in the next enforcer: it got no answer, or the disk keeps it.
func (w *world) mayBe(err error) bool { return !answered(err) || w.diskKeepsChanges }

// answered reports whether an error is the enforcer's own answer.
func answered(err error) bool { return errors.As(err, new(*api.Error)) }

func (s *slice) limits() []uint64 { return append([]uint64{s.limit}, s.others...) }

func askTooMuch(w *world, r *rand.Rand) bool {
	given := w.pickSlice(r, func(s *slice) bool { return s.state == active && s.pool == nil })
	if given == nil || w.mayFail != "" {
		return false
	}
	s := &slice{id: w.name(), state: active}
	s.cgroup = w.newCgroup(s.id)
	w.add(s)
	w.say("begin a container that requests all memory")
	w.create(s, map[string]string{"gpuslice.vram": memory})
	if err := w.hook("prestart", s); err == nil && !w.noTruth {
		w.fail("a container was given all memory, but %s has %d bytes of it", given.id, given.limit)
	}
	w.stopContainer(s)
	return true
}

type pool struct {
	name    string
	limit   uint64
	others  []uint64 // as for a slice
	unknown bool     // it may or may not exist
	// exitedBytes are bytes of processes that exited while no enforcer ran. Processes of other containers cannot see the exit, and so
	// cannot return the bytes.
	exitedBytes [devices]uint64
}

func (p *pool) used(w *world, device int) uint64 {
	var bytes uint64
	for _, s := range w.slices {
		if s.pool == p {
			bytes += s.used(device)
		}
	}
	return bytes
}

func (w *world) members(p *pool) (n int) {
	for _, s := range w.slices {
		if s.pool == p {
			n++
		}
	}
	return n
}

// noLimit marks a slice that only its pool limits.
const noLimit = uint64(1) << 62

func onAll(bytes uint64) api.PoolRequest {
	return api.PoolRequest{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: bytes}}}
}

func (w *world) pickPool(r *rand.Rand) *pool {
	var list []*pool
	for _, p := range w.pools {
		if !p.unknown {
			list = append(list, p)
		}
	}
	return oneOf(list, r)
}

func createPool(w *world, r *rand.Rand) bool {
	if len(w.pools) >= mostPools {
		return false
	}
	w.named++
	p := &pool{name: fmt.Sprint("pool-", w.named), limit: quota(r)}
	w.say("create %s with %d", p.name, p.limit)
	_, err := w.client.CreatePool(w.Context(), p.name, onAll(p.limit))
	if err != nil && w.mayFail == "" {
		w.fail("create %s: %v", p.name, err)
	}
	if err == nil || w.mayBe(err) {
		p.unknown = err != nil
		w.pools = append(w.pools, p)
	}
	return true
}

func changePool(w *world, r *rand.Rand) bool {
	p := w.pickPool(r)
	if p == nil {
		return false
	}
	limit := quota(r)
	w.say("%s gets %d instead of %d", p.name, limit, p.limit)
	_, err := w.client.SetPool(w.Context(), p.name, onAll(limit))
	switch {
	case err == nil:
		p.limit = limit
	case w.mayFail == "":
		w.fail("change %s: %v", p.name, err)
	case w.mayBe(err):
		p.others = append(p.others, limit)
	}
	return true
}

func deletePool(w *world, r *rand.Rand) bool {
	p := w.pickPool(r)
	if p == nil {
		return false
	}
	n := w.members(p)
	w.say("delete %s, which has %d members", p.name, n)
	_, err := w.client.DeletePool(w.Context(), p.name)
	switch {
	case n > 0 && err == nil:
		w.fail("%s was deleted, but has %d members", p.name, n)
	case n > 0 && !errors.Is(err, api.ErrRunning) && w.mayFail == "":
		w.fail("delete %s, which has %d members: %v", p.name, n, err)
	case n > 0:
	case err == nil:
		w.pools = without(w.pools, p)
	case w.mayFail == "":
		w.fail("delete %s: %v", p.name, err)
	default:
		p.unknown = w.mayBe(err)
	}
	return true
}

func beginMember(w *world, r *rand.Rand) bool {
	p := w.pickPool(r)
	if p == nil || len(w.slices) >= mostSlices {
		return false
	}
	s := &slice{id: w.name(), limit: quota(r), state: active, pool: p, elastic: r.IntN(3) == 0}
	annotations := map[string]string{"gpuslice.pool": p.name}
	if s.elastic {
		s.limit = noLimit
	} else {
		annotations["gpuslice.vram"] = toMiB(s.limit)
	}
	w.say("begin a container in %s, %s", p.name, s.id)
	w.beginContainer(s, annotations)
	return true
}

func memberWork(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool {
		return s.state == active && s.pool != nil && !s.init.dead && len(s.workers) < mostWorkers
	})
	if s == nil {
		return false
	}
	w.say("a process of %s, in %s, allocates, becomes another and is killed", s.id, s.pool.name)
	p := w.join(s)
	device := r.IntN(devices)
	p.makeContext(device)
	if p.contexts[device] {
		p.allocate(device, size(r), r.IntN(2))
	}
	w.check()
	if p.attached && r.IntN(2) == 0 {
		if got := p.ask("exec"); got != fmt.Sprint("ready ", p.pid) {
			w.fail("the new image of process %d: %q", p.pid, got)
		}
		p.held, p.contexts = nil, [devices]bool{}
		p.makeContext(device)
		w.check()
	}
	p.kill()
	return true
}

func (w *world) dropPools() {
	w.Helper()
	for _, s := range slices.Clone(w.slices) {
		if s.pool != nil {
			w.stop(s)
		}
	}
	w.check()
	for _, p := range slices.Clone(w.pools) {
		if _, err := w.client.DeletePool(w.Context(), p.name); err != nil {
			w.fail("delete %s: %v", p.name, err)
		}
		w.pools = without(w.pools, p)
	}
}

func (w *world) poolsDiffer() error {
	all, err := w.client.Pools(w.Context())
	if err != nil {
		return err
	}
	byName := map[string]api.Pool{}
	for _, p := range all {
		byName[p.Name] = p
	}
	for _, p := range slices.Clone(w.pools) {
		got, there := byName[p.name]
		delete(byName, p.name)
		switch {
		case p.unknown && !there:
			w.pools = without(w.pools, p)
			continue
		case !there:
			return fmt.Errorf("%s is lost", p.name)
		}
		p.unknown = false
		if got.State != api.Active {
			return fmt.Errorf("%s is %s: %s", p.name, got.State, got.Reason)
		}
		for _, d := range got.Devices {
			if d.Index < 0 || d.Index >= devices {
				continue
			}
			if slices.Contains(p.others, d.Limit) {
				p.others = append(p.others, p.limit)
				p.limit = d.Limit
			}
			if d.Limit != p.limit {
				return fmt.Errorf("%s has a limit of %d bytes, the model %d", p.name, d.Limit, p.limit)
			}
			if want := p.used(w, d.Index); d.Used+d.Overhead != want {
				return fmt.Errorf("%s has charged %d and %d bytes on device %d, the model %d", p.name, d.Used, d.Overhead, d.Index, want)
			}
		}
		p.others = nil
	}
	for name := range byName {
		return fmt.Errorf("there is a pool %s", name)
	}
	for _, p := range w.pools {
		p.exitedBytes = [devices]uint64{}
	}
	return nil
}
