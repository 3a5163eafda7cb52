// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// This file reports events of slices. There are none for the time in which no enforcer ran; the slice's counts include it. A slice that ended
// in that time is reported at the start.

const (
	eventsKept = 4096
	// eventsAtOnce is the most events in one answer.
	eventsAtOnce = 256
	// maxBytes bounds figures that a process can write at will.
	maxBytes = math.MaxInt64
)

// Events returns events of that instance after number since, oldest first, at most eventsAtOnce; see event.Log.Since. With wait it blocks until there
// is one. The end of ctx or of the enforcer is an error then.
func (e *Enforcer) Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error) {
	if wait {
		if err := e.events.Wait(ctx, instance, since); err != nil {
			return nil, err
		}
	}
	return e.events.Since(instance, since, eventsAtOnce), nil
}

func (s *slice) tell(e api.Event) {
	e.Slice, e.Generation, e.Container, e.Tenant, e.Names = s.request.ID, s.generation, s.request.Container, s.request.Tenant, s.request.Names
	s.e.events.Append(sourceOf(&s.request), e)
	if s.request.Session && (e.Kind == api.EventBypass || e.Kind == api.EventKilled) {
		s.e.ends.Go(func() { s.notify(e) })
	}
}

// notify writes an event where the session's first process reads it, to show it to its user.
func (s *slice) notify(e api.Event) {
	file, err := os.OpenFile(filepath.Join(s.dir, api.NoticeName), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		err = errors.Join(json.NewEncoder(file).Encode(e), file.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // after its release there is no file
		s.log.Error("the session's user is not told of an event", "event", e.Kind, "err", err)
	}
}

// sourceOperator is the source of pools' events, and of those of root's sessions.
const sourceOperator, sourceRoot = "", "user 0"

// sourceOf returns the source of a slice's events, which bounds their share of the log. All sessions of a user are one source. No slice's id has a
// space.
func sourceOf(r *api.RegisterRequest) string {
	if r.Session {
		return fmt.Sprint("user ", r.UID)
	}
	return r.ID
}

// reportRefusals reports a lane's refusals since the last call: those on the device of the last described refusal at once, others in the device's next
// event. Called with mu held.
func (s *slice) reportRefusals(l *quota.Lane, now time.Time) {
	r, described := s.quota.Ledger.LastRefusal(l.Number) // before the count: a later refusal is not mistaken for it
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

// tellRefusal reports count refusals on one device, the last of which a process has described. Called with mu held.
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

// drawsOn returns the pool if only its quota applies to the slice on a device; nil if the slice has a quota of its own there.
func (s *slice) drawsOn(d *quota.Device) *pool {
	if d.Limit != ledger.NoLimit {
		return nil
	}
	return s.poolOn(d.UUID)
}

// limit returns the slice's limit: 0 in record mode, the pool's for a member without one of its own. Called with mu held.
func (s *slice) limit(d *quota.Device) uint64 {
	if d.Limit != ledger.NoLimit {
		return d.Granted()
	}
	if p := s.drawsOn(d); p != nil {
		return p.limitOn(d.UUID)
	}
	return 0
}

// eventLimit returns the limit for an event: nil in record mode, 0 if the slice is granted nothing. Called with mu held.
func (s *slice) eventLimit(d *quota.Device) *uint64 {
	if d.Limit == ledger.NoLimit && len(s.pools) == 0 {
		return nil
	}
	return new(s.limit(d))
}

// highestLimit returns the highest limit so far, the most that one honest process can have charged: ledger.NoLimit in record mode. Called with mu
// held.
func (s *slice) highestLimit(d *quota.Device) uint64 {
	if p := s.drawsOn(d); p != nil {
		return max(d.Highest, p.highestOn(d.UUID))
	}
	return d.HighestLimit()
}

// reportCounts reports refusals and recovered bytes since the last call. Refusals not reported yet get one event for each device. Called with mu held.
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
			case len(s.pools) == 0 || d.Frozen: // the slice's own quota refused
			case p != nil:
				e.Pool = p.name
			default: // unknown which of the two refused
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

// reject reports that an attach was rejected, and its cause: attachResult's, "released" or "stranger".
func (s *slice) reject(pid int, cause string) {
	s.mu.Lock()
	tells := s.rejected.Add(time.Now(), cause)
	s.mu.Unlock()
	if tells {
		s.tell(api.Event{Kind: api.EventAttachRefused, PID: pid, Command: process.Name(pid), Cause: cause, Count: 1})
	}
}

// reportRejected reports rejections without an event of their own. Called with mu held.
func (s *slice) reportRejected() {
	s.rejected.Rest(func(cause string, n uint64) {
		s.tell(api.Event{Kind: api.EventAttachRefused, Cause: cause, Count: n})
	})
}
