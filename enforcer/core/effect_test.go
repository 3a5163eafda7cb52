// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// take receives the core's effects and checks them.
func (w *world) take() {
	for _, e := range w.c.Take() {
		switch e := e.(type) {
		case Reply:
			w.checkReply(e)
		case MoveOut:
			w.checkMoveOut(e)
		case Store:
			w.checkEvicted(e)
		case End:
			if h := w.holder(e.Generation); h == nil || h.Phase != Expiring {
				w.fail("%s has not expired, but its processes are to end", e.ID)
			}
		}
		w.todo = append(w.todo, e)
	}
}

func (w *world) holder(generation uint64) *holder {
	if i, known := w.c.index(generation); known {
		return w.c.holders[i]
	}
	return nil
}

// pick removes the first effect of some key; nil if there is none.
func (w *world) pick() Effect {
	if len(w.todo) == 0 {
		return nil
	}
	i := w.r.IntN(len(w.todo))
	for j := range i {
		if w.todo[j].Key() == w.todo[i].Key() {
			i = j
			break
		}
	}
	e := w.todo[i]
	w.todo = slices.Delete(w.todo, i, i+1)
	return e
}

func (w *world) effect() {
	if e := w.pick(); e != nil {
		w.carryOut(e, true)
	}
}

// deliver passes a pending fact to the core.
func (w *world) deliver() bool {
	if len(w.late) > 0 && (w.calm || w.r.IntN(20) == 0) {
		i := w.r.IntN(len(w.late))
		w.answers = append(w.answers, w.late[i])
		w.late = slices.Delete(w.late, i, i+1)
	}
	if len(w.answers) == 0 {
		return false
	}
	i := w.r.IntN(len(w.answers))
	f := w.answers[i]
	w.answers = slices.Delete(w.answers, i, i+1)
	w.note(f)
	return true
}

var errNo = errors.New("it failed")

func (w *world) fails(of int) error {
	if !w.calm && w.r.IntN(of) == 0 {
		return errNo
	}
	return nil
}

// carryOut carries an effect out, at times twice, and answers it.
func (w *world) carryOut(e Effect, answered bool) {
	if e == nil {
		return
	}
	w.say("  %T %+v", e, e)
	f := w.carryOutOnce(e)
	for again := w.r.IntN(8) == 0; ; again = false {
		if f != nil && answered {
			w.answers = append(w.answers, f)
		}
		if !again || failed(f) {
			return
		}
		if reply, ok := e.(Reply); ok {
			w.told[reply.Client] = nil // sent twice, as any effect
		}
		calm := w.calm
		w.calm = true // no effect fails any more
		f = w.carryOutOnce(e)
		w.calm = calm
	}
}

func failed(f Fact) bool {
	switch f := f.(type) {
	case Made:
		return f.Err != nil
	case Stored:
		return f.Err != nil
	case Opened:
		return f.Err != nil
	case Limited:
		return f.Err != nil
	case Moved:
		return f.Err != nil
	}
	return false
}

func (w *world) carryOutOnce(e Effect) Fact {
	p := w.pages[e.Key()]
	switch e := e.(type) {
	case Make:
		err := w.fails(20)
		if err == nil && p == nil {
			w.make(e)
		}
		return Made{e.Op, err}
	case Store:
		err := w.fails(12)
		if err == nil {
			w.store(e.Record)
		}
		return Stored{e.Op, err}
	case Forget:
		err := w.fails(12)
		if err == nil {
			w.forget(e)
		}
		return Stored{e.Op, err}
	case Listen:
		err := w.fails(20)
		if e.Op == 0 {
			err = nil
		}
		if err == nil && p != nil {
			p.listening = true
		}
		if e.Op != 0 {
			return Opened{e.Op, err}
		}
	case HangUp:
		delete(w.pages, e.Generation)
	case Limit:
		err := w.fails(60)
		if e.Op == 0 {
			err = nil
		}
		if err == nil || w.r.IntN(2) == 0 {
			p.limits, p.away = e.Limits, e.Away
		}
		if e.Op != 0 {
			return w.limited(p, e.Op, err)
		}
	case Close:
		err := w.fails(60)
		if e.Op == 0 {
			err = nil
		}
		if err == nil || w.r.IntN(2) == 0 {
			p.closed = true
		}
		if e.Op != 0 {
			return w.limited(p, e.Op, err)
		}
	case MoveOut:
		return w.moveOut(p, e)
	case MoveIn:
		return w.moveIn(p, e)
	case NativeLimit:
		if p != nil {
			p.native = e.Limits
		}
	case Reply:
		if _, asked := w.told[e.Client]; !asked {
			w.fail("client %d is answered twice, or never asked", e.Client)
		}
		delete(w.told, e.Client)
	case End:
		if e.Kill && !p.asked {
			w.fail("%s is killed, but was not asked to end", e.ID)
		}
		if p.asked = true; e.Kill && p.alive {
			w.end(p)
		}
		return Signalled{e.Generation}
	}
	return nil
}

func (w *world) limited(p *page, op uint64, err error) Fact {
	if err == nil {
		p.op = op
	}
	return Limited{op, err}
}

func (w *world) make(e Make) {
	h := w.holder(e.Generation)
	p := &page{Ref: e.Ref, limits: e.Limits, away: e.Away, alive: true, held: make(Bytes), host: make(Bytes), unlimited: h != nil && h.Unlimited}
	if h != nil {
		for _, pool := range h.pools {
			p.pools = append(p.pools, w.pages[pool.Generation])
		}
	}
	w.pages[e.Generation] = p
}

func (w *world) store(r Record) {
	if was, known := w.disk[r.Generation]; known && was.Phase > r.Phase {
		w.fail("%s: the stored phase falls from %d to %d", r.ID, was.Phase, r.Phase)
	}
	if r.Phase == Admitted {
		w.fail("%s is stored in phase Admitted, which means not stored", r.ID)
	}
	if p := w.pages[r.Generation]; r.Phase == Lingering && p.alive && len(p.host.without0()) > 0 {
		w.fail("%s is released, but has memory on the host", r.ID)
	}
	w.disk[r.Generation] = r
}

func (w *world) forget(e Forget) {
	p := w.pages[e.Generation]
	if p != nil && len(p.held.without0()) > 0 && !p.unlimited {
		w.fail("%s is forgotten, but holds %v", e.ID, p.held)
	}
	if p != nil && p.Kind == Slice && p.alive && p.listening {
		w.fail("%s is forgotten, but has processes", e.ID)
	}
	for _, m := range w.pages {
		if _, stored := w.disk[m.Generation]; stored && slices.Contains(m.pools, p) {
			w.fail("pool %s is forgotten, but has member %s", e.ID, m.ID)
		}
	}
	delete(w.disk, e.Generation)
	delete(w.acked, e.Generation)
}

func (w *world) moveOut(p *page, e MoveOut) Fact {
	err := w.fails(8)
	p.op = e.Op
	if err != nil && (p.away || w.r.IntN(2) == 0) {
		return Moved{Op: e.Op, At: Resident, Stuck: w.r.IntN(2) == 0, Err: err}
	}
	w.moves++
	p.away = true
	for uuid, n := range p.held {
		stays := min(n, e.Stay[uuid])
		if err != nil {
			stays = n / 2
		}
		p.host[uuid] += n - stays
		p.held[uuid] = stays
	}
	return Moved{Op: e.Op, At: w.failedAt(err), Left: maps.Clone(p.held), Err: err}
}

// failedAt returns the residence of a slice with memory on the host, after a failed move.
func (w *world) failedAt(err error) Residence {
	if err != nil && w.r.IntN(2) == 0 {
		return Returning
	}
	return Away
}

func (w *world) moveIn(p *page, e MoveIn) Fact {
	if err := w.fails(8); err != nil {
		if w.r.IntN(2) == 0 { // another program holds memory of the device
			err = &api.Error{Code: api.CodeQuotaExceeded, Device: "a", Requested: 9 * size, Limit: 100 * size, Current: uint64(90+w.r.IntN(20)) * size}
		}
		p.away, p.op = true, e.Op
		return Moved{Op: e.Op, At: w.failedAt(err), Left: maps.Clone(p.held), Err: err}
	}
	for uuid, n := range p.host {
		p.held[uuid] += n
	}
	clear(p.host)
	p.away, p.op = false, e.Op
	return Moved{Op: e.Op}
}
