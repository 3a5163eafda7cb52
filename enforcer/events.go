// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// Events of slices. There are none of what processes did while no enforcer ran; the slice's counts have it. A slice that ended meanwhile is
// reported at the start.

const (
	eventsKept = 4096
	// eventsAtOnce is how many events one answer has at most.
	eventsAtOnce = 256
	// maxBytes bounds a figure that a process can write at will.
	maxBytes = math.MaxInt64
)

// Events are those after number since of that instance, the oldest first, and not all of them if they are many; see event.Log.Since.
// With wait there is one at least, unless ctx ends or the enforcer does, which is an error.
func (e *Enforcer) Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error) {
	if wait {
		if err := e.events.Wait(ctx, instance, since); err != nil {
			return nil, err
		}
	}
	return e.events.Since(instance, since, eventsAtOnce), nil
}

// tell appends an event of the slice.
func (s *slice) tell(e api.Event) {
	e.Slice, e.Generation, e.Container, e.Tenant, e.Names = s.request.ID, s.generation, s.request.Container, s.request.Tenant, s.request.Names
	s.e.events.Append(sourceOf(&s.request), e)
}

// sourceOperator is the source of events of pools, which are the operator's, as root's sessions are.
const sourceOperator, sourceRoot = "", "user 0"

// sourceOf says whose share of the log the events of a slice take: those of all sessions of a user take one. No slice's id has a space.
func sourceOf(r *api.RegisterRequest) string {
	if r.Session {
		return fmt.Sprint("user ", r.UID)
	}
	return r.ID
}

// hear is the slice's attach.Listener. The sender need not be checked further: a pid that has a lane was a member
// when it got it, and if the pid is another's by now, the count that is reported is still this slice's.
func (s *slice) hear(pid int, r ledger.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.quota.State != api.Active && s.quota.State != api.Expired) || uint64(r.Device) >= uint64(len(s.quota.Devices)) || !s.refusals.Allow(time.Now()) {
		return
	}
	index := int(r.Device)
	var p *report.Process
	var n uint64
	if l := s.quota.Of(pid); l != nil {
		p, n = &l.Refusals, s.quota.Ledger.Refusals(index, l.Number)
	}
	e := api.Event{Kind: api.EventRefused, PID: pid}
	if e.Command, e.Count = s.refusals.Said(pid, p, index, n); e.Count == 0 {
		return // reported already, or never counted
	}
	d := s.quota.Devices[index]
	used := min(r.Used, d.Total)
	e.Device, e.Call, e.Requested = d.Name, r.Call.String(), min(r.Bytes, maxBytes)
	e.Limit = s.eventLimit(d)
	if p := s.poolOn(d.UUID); r.Pool && p != nil {
		e.Pool, e.Limit = p.name, new(p.limitOn(d.UUID))
	}
	overhead := min(r.Overhead, used)
	e.Used, e.Overhead = new(used-overhead), &overhead
	s.tell(e)
	s.keep(e, d)
}

// drawsOn is the pool of whose quota alone the slice draws on a device; nil if it has a quota of its own there.
func (s *slice) drawsOn(d *quota.Device) *pool {
	if d.Limit != ledger.NoLimit {
		return nil
	}
	return s.poolOn(d.UUID)
}

// limit is 0 in record mode, and the pool's limit for a member that has none of its own. Called with mu held.
func (s *slice) limit(d *quota.Device) uint64 {
	if d.Limit != ledger.NoLimit {
		return d.Granted()
	}
	if p := s.drawsOn(d); p != nil {
		return p.limitOn(d.UUID)
	}
	return 0
}

// eventLimit is the limit that an event has: none in record mode, and 0 where the slice can be given nothing. Called with mu held.
func (s *slice) eventLimit(d *quota.Device) *uint64 {
	if d.Limit == ledger.NoLimit && len(s.pools) == 0 {
		return nil
	}
	return new(s.limit(d))
}

// highestLimit is the highest limit that was ever in force there, which is what one honest process can have charged at most:
// ledger.NoLimit in record mode. Called with mu held.
func (s *slice) highestLimit(d *quota.Device) uint64 {
	if p := s.drawsOn(d); p != nil {
		return max(d.Highest, p.highestOn(d.UUID))
	}
	return d.HighestLimit()
}

// reportCounts reports what counts have grown and nobody said anything about: one event of a kind for each device, so
// that there are not more of them than a follower can take. all of it at the slice's end; else what the check before this one has
// seen. Called with mu held.
func (s *slice) reportCounts(all bool) {
	for i, d := range s.quota.Devices {
		refused := s.refusals.Check(i, all, func(yield func(*report.Process, uint64) bool) {
			for l := range s.quota.Lanes() {
				if !yield(&l.Refusals, s.quota.Ledger.Refusals(i, l.Number)) {
					return
				}
			}
		})
		if refused.Count > 0 {
			e := api.Event{
				Kind: api.EventRefused, Device: d.Name, Limit: s.eventLimit(d),
				PID: refused.PID, Command: refused.Command, Count: refused.Count,
			}
			switch p := s.drawsOn(d); {
			case len(s.pools) == 0 || d.Frozen: // it was the slice's
			case p != nil:
				e.Pool = p.name
			default: // the counts do not say whether it was that one or the pool's
				e.Limit = nil
			}
			s.tell(e)
			s.keep(e, d)
		}
		if recovered, told := s.quota.Ledger.Recovered(i), s.noted(d).recovered; recovered != told {
			if recovered > told {
				s.tell(api.Event{Kind: api.EventFreed, Device: d.Name, Bytes: min(recovered-told, maxBytes)})
			}
			s.note(d).recovered = recovered
		}
	}
	s.refusals.Checked()
}

// reject reports that a process's attach was rejected, and why: as attachResult says it, "released" or "stranger".
func (s *slice) reject(pid int, cause string) {
	s.mu.Lock()
	tells := s.rejected.Add(time.Now(), cause)
	s.mu.Unlock()
	if tells {
		s.tell(api.Event{Kind: api.EventAttachRefused, PID: pid, Command: process.Name(pid), Cause: cause, Count: 1})
	}
}

// reportRejected reports those that were not reported one by one. Called with mu held.
func (s *slice) reportRejected() {
	s.rejected.Rest(func(cause string, n uint64) {
		s.tell(api.Event{Kind: api.EventAttachRefused, Cause: cause, Count: n})
	})
}
