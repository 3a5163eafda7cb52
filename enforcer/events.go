// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"math"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// What is told of slices. A refusal is counted by the process, in its lane; that count decides how many there were,
// and how many are still to be told. What a process says of one (attach.Listener) adds what the count does not have,
// and makes it known at once. What was not said, or not heard, the regular look finds: so nothing is told twice,
// whatever a process says, and nothing is lost, however many are refused. Of what processes did while no enforcer ran
// there are no events; the counts of the slice have it. That it ended meanwhile is told at the start.

const (
	eventsKept = 4096
	// eventsAtOnce is how many events one answer has at most.
	eventsAtOnce = 256
	// hintsPerSecond is how many refusals of a slice are told one by one; the others are told as a sum.
	hintsPerSecond = 16
	// mostUntold is of how many dead processes it is remembered which of them was refused.
	mostUntold = 64
	// most that is believed of a figure that a process can write at will.
	mostCount = math.MaxUint32
	mostBytes = math.MaxInt64
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
	e.Slice, e.Generation, e.Container, e.Tenant = s.request.ID, s.generation, s.request.Container, s.request.Tenant
	s.e.events.Append(e)
}

// counted is what was told of a count that a process raises.
type counted struct{ told, looked uint64 }

// begin takes a count as told.
func (c *counted) begin(n uint64) { c.told, c.looked = n, n }

// rest is what the count n has grown since it was told. It is told now.
func (c *counted) rest(n uint64) uint64 {
	grown := n - min(n, c.told)
	c.begin(n)
	return min(grown, mostCount)
}

// settled is what the count had grown at the look before this one, so that a process has had the time between two
// looks to say more about it. It is told now.
func (c *counted) settled(n uint64) uint64 {
	grown := c.looked - min(c.looked, c.told)
	c.told = c.looked
	if n < c.told { // nobody who is honest counts down
		c.told = n
	}
	c.looked = n
	return min(grown, mostCount)
}

// untold is what a process was refused that has ended since: what it said may still wait to be heard.
type untold struct {
	command string
	count   [ledger.Devices]uint64
	looked  bool // by a look since
}

// hints counts what processes say within a second.
type hints struct {
	second int64
	count  int
}

func (h *hints) take(now time.Time) bool {
	if second := now.Unix(); second != h.second {
		h.second, h.count = second, 0
	}
	h.count++
	return h.count <= hintsPerSecond
}

// hear is the slice's attach.Listener. Who speaks need not be looked at further: a pid that has a lane was a member
// when it got it, and if the pid is another's by now, the count that is told is still this slice's.
func (s *slice) hear(pid int, r ledger.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.state != api.Active && s.state != api.Expired) || uint64(r.Device) >= uint64(len(s.devices)) || !s.hints.take(time.Now()) {
		return
	}
	index := int(r.Device)
	e := api.Event{Kind: api.EventRefused, PID: pid}
	if l := s.byPID[pid]; l != nil {
		e.Command, e.Count = l.command, l.refusals[index].rest(s.ledger.Refusals(index, l.number))
	}
	if u := s.untold[pid]; u != nil && e.Count == 0 {
		e.Command, e.Count = u.command, u.count[index]
		u.count[index] = 0
	}
	if e.Count == 0 {
		return // told already, or never counted
	}
	d := s.devices[index]
	used := min(r.Used, d.Total)
	e.Device, e.Call, e.Requested = d.uuid, r.Call.String(), min(r.Bytes, mostBytes)
	e.Limit = d.toldLimit()
	if r.Pool && s.pool != nil {
		e.Pool, e.Limit = s.pool.name, new(s.pool.limitOn(d.UUID))
	}
	overhead := min(r.Overhead, used)
	e.Used, e.Overhead = new(used-overhead), &overhead
	s.tell(e)
}

// toldLimit is the limit that an event has: none in record mode, and 0 where the slice can be given nothing.
func (d *device) toldLimit() *uint64 {
	if d.Limit == ledger.NoLimit && d.pool == nil {
		return nil
	}
	return new(d.shownLimit())
}

// shownLimit is 0 in record mode, and the pool's limit for a member that has none of its own.
func (d *device) shownLimit() uint64 {
	switch {
	case d.Limit != ledger.NoLimit:
		return d.given()
	case d.pool != nil:
		return d.pool.limitOn(d.UUID)
	}
	return 0
}

// mostLimit is the highest limit that was ever in force there, which is what one honest process can have charged at most:
// ledger.NoLimit in record mode.
func (d *device) mostLimit() uint64 {
	if d.Limit == ledger.NoLimit && d.pool != nil {
		return max(d.most, d.pool.mostOn(d.UUID))
	}
	return max(d.most, d.given())
}

// keepUntold remembers what was not told of a dead process. Called with mu held, before another gets the lane.
func (s *slice) keepUntold(l *lane) {
	for i := range s.devices {
		n := l.refusals[i].rest(s.ledger.Refusals(i, l.number))
		if n == 0 {
			continue
		}
		pid, command := l.process.PID, l.command
		if s.untold[pid] == nil && len(s.untold) >= mostUntold {
			pid, command = 0, "" // they are counted, and not told apart
		}
		if s.untold == nil {
			s.untold = make(map[int]*untold)
		}
		if s.untold[pid] == nil {
			s.untold[pid] = &untold{command: command}
		}
		u := s.untold[pid]
		u.count[i] = min(u.count[i]+n, mostCount)
	}
}

// tellCounts tells what counts have grown and nobody said anything about: one event of a kind for each device, so
// that there are not more of them than a follower can take. all of it at the slice's end; else what a look has seen
// before. Called with mu held.
func (s *slice) tellCounts(all bool) {
	for i, d := range s.devices {
		e := api.Event{Kind: api.EventRefused, Device: d.uuid, Limit: d.toldLimit()}
		switch {
		case s.pool == nil || d.frozen: // it was the slice's
		case d.pool != nil:
			e.Pool = d.pool.name
		default: // the counts do not say whether it was that one or the pool's
			e.Limit = nil
		}
		processes := 0
		add := func(n uint64, pid int, command string) {
			if n == 0 {
				return
			}
			processes++
			e.Count = min(e.Count+n, mostCount)
			e.PID, e.Command = pid, command
		}
		for _, l := range s.lanes {
			n := s.ledger.Refusals(i, l.number)
			if all {
				n = l.refusals[i].rest(n)
			} else {
				n = l.refusals[i].settled(n)
			}
			add(n, l.process.PID, l.command)
		}
		for pid, u := range s.untold {
			if all || u.looked {
				add(u.count[i], pid, u.command)
				u.count[i] = 0
			}
		}
		if processes > 1 {
			e.PID, e.Command = 0, ""
		}
		if e.Count > 0 {
			s.tell(e)
		}
		if recovered := s.ledger.Recovered(i); recovered != d.told {
			if recovered > d.told {
				s.tell(api.Event{Kind: api.EventRecovered, Device: d.uuid, Bytes: min(recovered-d.told, mostBytes)})
			}
			d.told = recovered
		}
	}
	for pid, u := range s.untold {
		if u.looked {
			delete(s.untold, pid)
		}
		u.looked = true
	}
}

// command is what a process is named, by its own word.
func command(pid int) string { return process.Name(pid) }
