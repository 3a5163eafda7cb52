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

// reportRefusals reports the refusals of a lane since it was last called: on one device with what the process described of the last one, on
// others in the next event of the device. Called with mu held.
func (s *slice) reportRefusals(l *quota.Lane, now time.Time) {
	r, described := s.quota.Ledger.LastRefusal(l.Number) // before its count, so that one which comes now is not taken for it
	for i := range s.quota.Devices {
		n := l.Refusals.Rest(i, s.quota.Ledger.Refusals(i, l.Number))
		if n == 0 {
			continue
		}
		if described && r.Device == i {
			s.quota.Ledger.Reported(l.Number, r)
			if s.refusals.Allow(now) {
				s.tellRefusal(l, r, n)
				continue
			}
		}
		s.refusals.Add(i, report.Sum{Count: n, PID: l.Refusals.PID, Command: l.Refusals.Command})
	}
}

// tellRefusal reports count refusals on one device, of which a process has described the last. Called with mu held.
func (s *slice) tellRefusal(l *quota.Lane, r ledger.Refusal, count uint64) {
	d := s.quota.Devices[r.Device]
	used := min(r.Used, d.Total)
	overhead := min(r.Overhead, used)
	e := api.Event{
		Kind: api.EventRefused, PID: l.Refusals.PID, Command: l.Refusals.Command, Count: count, Device: d.Name, Call: r.Call,
		Requested: min(r.Bytes, maxBytes), Limit: s.eventLimit(d), Used: new(used - overhead), Overhead: &overhead,
	}
	if p := s.poolOn(d.UUID); r.ByPool && p != nil {
		e.Pool, e.Limit = p.name, new(p.limitOn(d.UUID))
	}
	s.tell(e)
	s.keep(e, d, min(r.Needed, maxBytes))
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

// reportCounts reports refusals, and bytes that processes have recovered, since it was last called. Refusals without an event of their own have
// one for each device. Called with mu held.
func (s *slice) reportCounts() {
	now := time.Now()
	for l := range s.quota.Lanes() {
		s.reportRefusals(l, now)
	}
	for i, d := range s.quota.Devices {
		refused := s.refusals.Take(i)
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
			s.keep(e, d, 0)
		}
		if recovered, told := s.quota.Ledger.Recovered(i), s.noted(d).recovered; recovered != told {
			if recovered > told {
				s.tell(api.Event{Kind: api.EventFreed, Device: d.Name, Bytes: min(recovered-told, maxBytes)})
			}
			s.note(d).recovered = recovered
		}
	}
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
