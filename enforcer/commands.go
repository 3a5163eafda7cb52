// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// This file connects the host with package core. Core takes commands and facts, and returns effects for slices and pools. An effect lies on the desk of
// its slice or pool until an owner of that one's turn carries it out: the caller of a command, until its reply comes, or a goroutine that takes
// the turn for it. The fact that answers the effect goes back to core.

// adapter is a slice or a pool that carries out effects.
type adapter interface {
	// carryOut returns the fact that answers an effect; nil if none does. It is called in the adapter's turn, and holds no lock.
	carryOut(core.Effect) core.Fact
	atDesk() *desk
}

// desk has the effects that a slice or pool is to carry out, in their order. The book guards all but turn and bell.
type desk struct {
	turn     *guard.Turn
	effects  []core.Effect // and replies that follow them
	working  bool          // the last one is being carried out
	expected bool          // a goroutine waits for the turn to carry them out
	bell     chan struct{} // has a value once there are more
}

func newDesk() desk { return desk{turn: guard.NewTurn(), bell: make(chan struct{}, 1)} }

func (d *desk) atDesk() *desk { return d }

// calls has the commands that core has not answered, and the adapters. Guarded by the book.
type calls struct {
	last    uint64
	of      map[uint64]*call   // by client
	holders map[uint64]adapter // by generation
}

// call is a command without an answer.
type call struct {
	of     adapter
	answer chan error
}

// command has core carry out a command on a slice or pool, and returns its error. The caller has the turn of that. Slices may be evicted for it.
func (e *Enforcer) command(of adapter, cmd func(client uint64) core.Command) error {
	e.observeAll()
	return e.ask(of, cmd)
}

// ask is command without a look at what elastic slices have done until now.
func (e *Enforcer) ask(of adapter, cmd func(client uint64) core.Command) error {
	c := &call{of, make(chan error, 1)}
	e.consult(of, func(a *core.Accounts) {
		e.calls.last++
		e.calls.of[e.calls.last] = c
		a.Do(cmd(e.calls.last))
	})
	for {
		e.work(of)
		select {
		case err := <-c.answer:
			e.work(of) // what came with the answer
			return err
		case <-of.atDesk().bell:
		}
	}
}

// note has core take a fact about a slice or pool, and carries out what follows. The caller has the turn of that.
func (e *Enforcer) note(about adapter, f core.Fact) {
	e.consult(about, func(a *core.Accounts) { a.Note(f) })
	e.work(about)
}

// consult calls f, and puts the effects that follow on the desks of their slices and pools. The caller has the turn of own, which may be nil, and carries
// out its effects.
func (e *Enforcer) consult(own adapter, f func(*core.Accounts)) {
	e.book.Do(func(a *core.Accounts) {
		a.At(e.now())
		f(a)
		for _, x := range a.Take() {
			h := e.calls.holderOf(x)
			if r, is := x.(core.Reply); is && (h == nil || !h.atDesk().working && len(h.atDesk().effects) == 0) {
				e.calls.deliver(r)
				continue
			}
			if h == nil {
				continue
			}
			d := h.atDesk()
			d.effects = append(d.effects, x)
			select {
			case d.bell <- struct{}{}:
			default:
			}
			if h != own && !d.expected {
				d.expected = true
				e.ends.Go(func() { e.workInTurn(h) })
			}
		}
	})
}

// workInTurn takes the turn of a slice or pool, and carries out the effects on its desk.
func (e *Enforcer) workInTurn(h adapter) {
	d := h.atDesk()
	d.turn.Wait()
	defer d.turn.Give()
	e.book.Do(func(*core.Accounts) { d.expected = false })
	e.work(h)
}

// work carries out the effects on a slice's or pool's desk. The caller has the turn of that.
func (e *Enforcer) work(h adapter) {
	for d := h.atDesk(); ; {
		var x core.Effect
		e.book.Do(func(*core.Accounts) {
			for x = nil; x == nil && len(d.effects) > 0; d.effects = d.effects[1:] {
				if r, is := d.effects[0].(core.Reply); is {
					e.calls.deliver(r)
				} else {
					x = d.effects[0]
				}
			}
			d.working = x != nil
		})
		if x == nil {
			return
		}
		if f := h.carryOut(x); f != nil {
			e.consult(h, func(a *core.Accounts) { a.Note(f) })
		}
	}
}

// deliver passes a reply to the command's caller.
func (c *calls) deliver(r core.Reply) {
	c.of[r.Client].answer <- r.Err
	delete(c.of, r.Client)
}

// holderOf returns the slice or pool of an effect; nil if core no longer has it.
func (c *calls) holderOf(x core.Effect) adapter {
	key := x.Key()
	switch x := x.(type) {
	case core.Make:
		c.holders[key] = c.of[x.Client].of
	case core.HangUp:
		defer delete(c.holders, key)
	case core.Emit:
		key = x.Ref.Generation
	case core.Reply:
		key = x.After
	}
	return c.holders[key]
}

// know has a slice or pool carry out the effects of its generation.
func (e *Enforcer) know(h adapter, generation uint64) {
	e.book.Do(func(*core.Accounts) { e.calls.holders[generation] = h })
}
