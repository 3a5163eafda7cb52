// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// The comparison of the ledger with driver truth. What the driver holds for a process beyond what its lane holds
// (modules, local memory, memory that it hides) is charged by the enforcer in lane 0, as one sum per device.
// Memory that a process gets is charged first, and memory that it gives back is released last; so an honest lane
// is not below the truth of the same instant, and what is beyond it is overhead or hidden. Small allocations are the exception:
// only the driver knows which block they fall into, so that is charged afterwards. The lane says that one is under way
// (ledger.Uncharged), and its block is not charged as well.
//
// No look at a process that is at work is exact, since its lane and the driver are read one after the other. So it is looked at
// up to five times: the excess is raised to the least of what these say, and lowered to the most.

const (
	// shortest time between two comparisons of a device: between them the driver gives back what a process that exited held.
	shortest = 20 * time.Millisecond
	// rounds of looking at a process that is charging at that moment, before its excess is changed.
	rounds = 5
	// lows is how many comparisons in a row have to find less at a process that never stands still.
	lows = 8
	// blockBytes is what a call that is charged afterwards can take (interceptor/block.h). The driver serves a process's threads
	// one after the other, so few of many such calls have taken theirs: the more are believed, the more can be hidden.
	blockBytes = 2 << 20
	mostUnsaid = 16
	// looksAtCalls is how many comparisons such calls are waited for, at least.
	looksAtCalls = 4
)

// patienceOfCall is how long they are waited for, at least; two intervals, if those are longer. They take a millisecond, if their
// process is let run. Tests have more.
var patienceOfCall = 2 * time.Second

// excess is what the driver holds for one process beyond its lane.
type excess struct {
	start   uint64 // of the process: its pid may be another's next time
	charged uint64
	// low is how many comparisons in a row found less than is charged, most the highest that they found and last what the last
	// one did. One low figure can be a coincidence of a process that is at work: two in a row are believed if nothing was
	// charged in between, else only many.
	low        int
	most, last uint64
	number     uint64    // the lane's last change, as of the last comparison
	late       time.Time // since when each comparison found more, and calls that may owe it
	looks      int       // how many those are
}

// bounds is what looks at a process say that the driver holds for it beyond its lane: between the least and the most.
type bounds struct {
	least, most uint64
	unsaid      uint64 // bytes that calls may have taken of which the lane does not say so yet
	loading     bool   // a call was under way that may have taken any amount: code was loaded
}

// and is what they say together with more looks.
func (b bounds) and(more bounds) bounds {
	return bounds{min(b.least, more.least), max(b.most, more.most), max(b.unsaid, more.unsaid), b.loading || more.loading}
}

// sure is what the driver holds for it whatever the calls under way have taken.
func (b bounds) sure() uint64 { return b.least - min(b.least, b.unsaid) }

// holding is what a process's lane said at one time.
type holding struct {
	bytes, number uint64
	calls, loads  ledger.Calls
}

// loadingBetween says whether code was being loaded at any time between the two.
func loadingBetween(before, after holding) bool {
	return after.loads.UnderWay != 0 || after.loads.Ended != before.loads.Ended
}

// unsaidBetween is what calls may have taken that were under way at any time between the two.
func unsaidBetween(before, after holding) uint64 {
	return blockBytes * min(uint64(after.calls.UnderWay)+uint64(after.calls.Ended-before.calls.Ended), mostUnsaid)
}

// compare keeps one device's ledgers with the truth, until ctx ends. Whatever processes do, it takes two samples in an interval at most: the
// regular one, and one that something asked for. What asks for more waits for the next regular one.
func (e *Enforcer) compare(ctx context.Context, g *gpu) {
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	var again <-chan time.Time // a second look at what one look does not settle
	kick := g.kick             // nil once the interval's second sample was taken
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			kick = g.kick
			select {
			case <-kick:
			default:
				due = true
			}
		case <-kick:
			kick = nil
		case <-again:
			kick = nil
		}
		again = nil
		e.publish(g)
		if e.look(ctx, g, due) && kick != nil {
			again = time.After(e.options.Interval / 2)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(shortest):
		}
	}
}

// kickAll asks for a comparison of the slice's devices soon, after an exit. Called with the slice's mu held.
func (e *Enforcer) kickAll(s *slice) {
	if e.truth == nil {
		return
	}
	for _, d := range s.devices {
		if g := e.truth.device(d.UUID); g != nil {
			select {
			case g.kick <- struct{}{}:
			default: // one is due already
			}
		}
	}
}

// look compares a device's ledgers with the truth; or not, if that is only due and a glance says that it would find what it
// found. again says that it should soon be done again.
func (e *Enforcer) look(ctx context.Context, g *gpu, due bool) (again bool) {
	// Those that have no quota there, too: they may hold nothing on it.
	slices := e.all()
	if len(slices) == 0 {
		g.answered(nil)
		return false
	}
	now, err := e.glance(g, slices)
	switch {
	case errors.Is(err, errHangs): // as would the next question
		e.failing(g, err)
		g.seen = seen{} // who asked for this look did so for what no glance shows
		return false
	case err == nil && due && g.seen.same(now):
		e.failing(g, nil)
		return false
	}
	found := e.compareOnce(ctx, g, slices)
	// Instances of a GPU can share memory: what is in use of it is then not what is in use here.
	g.seen.compared(now, found, err == nil && g.Parent == "")
	return found.again
}

// found is what a comparison leaves.
type found struct {
	listed uint64 // bytes of all processes that the driver lists
	again  bool   // it should soon be done again
	open   bool   // another one may find something else, though nothing has changed
}

// compareOnce compares a device's ledgers once.
func (e *Enforcer) compareOnce(ctx context.Context, g *gpu, slices []*slice) (f found) {
	before := make(map[*slice]map[int]holding)
	beyond := make(map[*slice]map[int]bounds)
	mine := make(map[*slice]map[int]uint64)
	known, gone := attachedTo(slices), deadOf(slices, g.Raw)
	for round := range rounds {
		for _, s := range slices {
			before[s] = s.holdings(g.Raw)
		}
		all, err := e.truth.processes(g, patience)
		if err != nil {
			e.failing(g, err)
			return found{open: true}
		}
		var untold error
		clear(mine)
		f = found{}
		for pid, bytes := range all {
			s := known.owner(e, pid)
			if s == nil {
				s = gone.owner(pid)
			}
			switch {
			case s == nil:
			case mine[s] == nil:
				mine[s] = map[int]uint64{pid: bytes}
			default:
				mine[s][pid] = bytes
			}
			if before[s] == nil && bytes > 0 { // nobody's, or of a slice whose lanes there count for nothing
				f.open = true // it may give back what another one takes, without a lane that tells of it
			}
			if bytes != driver.Unknown {
				f.listed += bytes
			} else if f.open = true; s != nil {
				untold = errUntold
			}
		}
		e.failing(g, untold)
		moving := false
		for _, s := range slices {
			found, moved := s.beyond(g.Raw, mine[s], before[s])
			moving = moving || moved
			if round == 0 {
				beyond[s] = found
				continue
			}
			for pid, now := range found {
				if earlier, ok := beyond[s][pid]; ok {
					found[pid] = earlier.and(now)
				}
			}
			beyond[s] = found
		}
		if !moving {
			break
		}
	}
	for _, s := range slices {
		if _, covered := s.quotaOn(g.Raw, g.Total); covered && len(mine[s]) > 0 {
			s.take(g)
		}
		unsettled, waits := s.charge(g.Raw, mine[s], beyond[s])
		executed := s.settleExecuted(g.Raw, mine[s])
		guilty, doubt, suspicious := s.judge(g, mine[s], beyond[s], before[s])
		f.again = f.again || doubt || waits
		f.open = f.open || unsettled || executed || suspicious
		for _, x := range guilty {
			e.punish(ctx, s, x)
		}
	}
	return f
}

// failing notes whether the driver answers, and says so when that changes.
func (e *Enforcer) failing(g *gpu, err error) {
	g.answered(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err != nil && !g.failing:
		e.log.Error("driver truth fails; hidden memory on the device is not seen until it is back", "device", g.UUID, "err", err)
	case err == nil && g.failing:
		e.log.Info("driver truth is back", "device", g.UUID)
	}
	g.failing = err != nil
}

// take adds a device to the ledger that a process uses without having asked for it.
func (s *slice) take(g *gpu) {
	s.mu.Lock()
	known := s.find(g.Raw) >= 0 || s.state != api.Active
	s.mu.Unlock()
	if known {
		return
	}
	if _, err := s.addDevice(g.Raw, g.Total); err != nil {
		s.log.Error("a process uses a device that the slice's ledger has no place for", "device", g.UUID, "err", err)
	}
}

// holdings are what the slice's lanes hold on a device now, by pid.
func (s *slice) holdings(raw [16]byte) map[int]holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.find(raw)
	if index < 0 || s.state != api.Active {
		return nil
	}
	all := make(map[int]holding, len(s.lanes))
	for _, l := range s.lanes {
		calls := s.ledger.Uncharged(index, l.number) // first: what those charged that have ended is in the rest
		loads := s.ledger.Loads(l.number)
		all[l.process.PID] = holding{s.charged(index, l), s.ledger.Number(index, l.number), calls, loads}
	}
	return all
}

// charged is what a lane holds on a device for its process. What a checkpointed one is charged for is lent to others: if the driver
// holds it for the process again and nobody has asked for it back, that is beyond the lane. Called with mu held.
func (s *slice) charged(index int, l *lane) uint64 {
	held := s.ledger.Held(index, l.number)
	return held - min(held, s.devices[index].suspended[l.number])
}

// beyond is what the driver holds for each process beyond its lane. moved says that a process was at work
// meanwhile whose excess would have to be changed, or that would have to be suspected.
func (s *slice) beyond(raw [16]byte, truth map[int]uint64, before map[int]holding) (found map[int]bounds, moved bool) {
	found = make(map[int]bounds, len(truth))
	after := s.holdings(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.find(raw)
	for pid, bytes := range truth {
		if bytes == driver.Unknown { // what was charged for it stays
			if index >= 0 && s.devices[index].excess[pid] != nil {
				charged := s.devices[index].excess[pid].charged
				found[pid] = bounds{least: charged, most: charged}
			}
			continue
		}
		more := bytes - min(bytes, max(before[pid].bytes, after[pid].bytes))
		found[pid] = bounds{more, more, unsaidBetween(before[pid], after[pid]), loadingBetween(before[pid], after[pid])}
		if index < 0 || before[pid].number == after[pid].number {
			continue
		}
		var charged uint64
		if x := s.devices[index].excess[pid]; x != nil {
			charged = x.charged
		}
		if more != charged || more > s.e.options.Policy.Allowance {
			moved = true
		}
	}
	return found, moved
}

// charge brings lane 0 to what the driver holds beyond the ledger: up at once; down when a process died and is not listed any more, or
// when several comparisons say so. unsettled says that there may be more to charge, or less, though nothing changes; waits
// that some of it was left to calls which charge it themselves, so that the next look should come soon.
func (s *slice) charge(raw [16]byte, truth map[int]uint64, beyond map[int]bounds) (unsettled, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.find(raw)
	if index < 0 || s.state != api.Active {
		return false, false
	}
	d := s.devices[index]
	d.driver = maps.Clone(truth)
	maps.DeleteFunc(d.driver, func(_ int, bytes uint64) bool { return bytes == driver.Unknown })
	for pid, x := range d.excess {
		start, err := process.StartTime(pid)
		_, listed := beyond[pid]
		if errors.Is(err, process.ErrDead) && !listed || err == nil && start != x.start {
			delete(d.excess, pid)
		} else if !listed {
			x.late = time.Time{}
			x.believe(bounds{}, s.number(index, pid))
		}
	}
	for pid, found := range beyond {
		x := d.excess[pid]
		if l := s.byPID[pid]; l != nil {
			if l.settles[index].number == s.number(index, pid) && time.Now().Before(l.settles[index].until) || s.makesFirstContext(index, l) {
				unsettled = true
				continue
			}
			if known := truth[pid]; known != driver.Unknown { // it may have charged since it was looked at
				found.least = min(found.least, known-min(known, s.charged(index, l)))
			}
		}
		if s.mayBeGivenBack(d, pid) {
			unsettled = true
			if x == nil {
				continue
			}
			found.least = min(found.least, x.charged)
		}
		if x == nil {
			start, err := d.startTime(pid)
			if err != nil || found.least == 0 {
				unsettled = unsettled || err != nil // nobody knows yet whose it is
				continue
			}
			x = &excess{start: start}
			d.excess[pid] = x
		}
		due := x.due(found, max(patienceOfCall, 2*s.e.options.Interval))
		waits = waits || due < found.least
		found.least = due
		x.believe(found, s.number(index, pid))
	}
	if d.bury(truth) {
		s.e.kickAll(s)
	}
	for _, x := range d.excess {
		unsettled = unsettled || x.low > 0
	}
	s.chargeExcess(d)
	return unsettled, waits
}

// makesFirstContext says that the process has charged nothing yet on the device and may be making its first
// context there. Where its cost is not known it is charged when it is there, by the process; until then it would be
// taken for hidden memory, and count twice for a moment. Called with mu held.
func (s *slice) makesFirstContext(index int, l *lane) bool {
	return !l.learned[index] && s.ledger.Held(index, l.number) == 0 && time.Since(l.attached) < patienceOfContext
}

// chargeExcess is called with mu held.
func (s *slice) chargeExcess(d *device) {
	var total uint64
	for _, x := range d.excess {
		total += x.charged
	}
	if err := d.account.Set(total); err != nil {
		s.damaged(fmt.Errorf("overhead on device %s cannot be charged: %w", d.uuid, err))
	}
	if s.pool != nil {
		s.pool.beyondLanes(s, d.UUID, total)
	}
}

// number of the process's last change on a device. Called with mu held.
func (s *slice) number(index, pid int) uint64 {
	if l := s.byPID[pid]; l != nil {
		return s.ledger.Number(index, l.number)
	}
	return 0
}

// due is the least of what was found, without what calls may have taken and will charge themselves: these are left that for so long as
// patience says.
func (x *excess) due(found bounds, patience time.Duration) uint64 {
	left := found.least - min(found.least, x.charged)
	if !found.loading {
		left = min(left, found.unsaid)
	}
	if left == 0 {
		x.late = time.Time{}
		return found.least
	}
	if x.late.IsZero() {
		x.late, x.looks = time.Now(), 0
	}
	x.looks++
	if x.looks > looksAtCalls && time.Since(x.late) >= patience {
		return found.least
	}
	return found.least - left
}

// believe takes in what a comparison found. number is that of the lane's last change.
func (x *excess) believe(found bounds, number uint64) {
	switch {
	case found.least >= x.charged:
		x.charged, x.low = found.least, 0
		return
	case found.most >= x.charged:
		x.low = 0
		return
	}
	if x.low == 0 {
		x.most, x.last = 0, x.charged
	}
	x.low++
	x.most = max(x.most, found.most)
	switch {
	case x.number == number:
		x.charged = max(x.last, found.most)
		x.low, x.most = 1, found.most
	case x.low == lows:
		x.charged, x.low, x.most = x.most, 0, 0
		if found.most < x.charged { // it is lower already: nothing is settled, and no glance may stand for the next look
			x.low, x.most = 1, found.most
		}
	}
	x.last, x.number = found.most, number
}
