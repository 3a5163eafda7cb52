// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"github.com/gpuslice/gpuslice/enforcer/core"
)

// This file has package core carry out commands: core decides, slices and pools carry out its effects one after the other, and the facts that answer them go
// back to core.

// adapter is a slice or a pool that carries out effects.
type adapter interface {
	// carryOut returns the fact that answers an effect; nil if none does. It holds no lock.
	carryOut(core.Effect) core.Fact
}

// calls has the commands that core has not answered, and the adapters. Guarded by the book.
type calls struct {
	last    uint64
	of      map[uint64]*call   // by client
	holders map[uint64]adapter // by generation
}

// call is a command without an answer.
type call struct {
	made   adapter // by the command
	answer chan core.Reply
}

// command carries out a command, and returns its error. Slices are evicted for a grant that has no room.
func (e *Enforcer) command(made adapter, cmd func(client uint64) core.Command) error {
	r := e.ask(made, cmd)
	return e.evictFor(r.Err, r.Lacks, false)
}

// ask carries out a command, and returns core's answer. The caller has the turn of the command's holder; made is what the command makes, nil if nothing.
func (e *Enforcer) ask(made adapter, cmd func(client uint64) core.Command) core.Reply {
	c := &call{made, make(chan core.Reply, 1)}
	e.carryOut(func(a *core.Accounts) {
		e.calls.last++
		e.calls.of[e.calls.last] = c
		a.Do(cmd(e.calls.last))
	})
	return <-c.answer
}

// note has core take a fact.
func (e *Enforcer) note(f core.Fact) { e.carryOut(func(a *core.Accounts) { a.Note(f) }) }

// carryOut calls begin, and carries out the effects that follow until there are no more.
func (e *Enforcer) carryOut(begin func(*core.Accounts)) {
	var effects []core.Effect
	take := func(f func(*core.Accounts)) {
		e.book.Do(func(a *core.Accounts) {
			a.At(e.now())
			f(a)
			effects = append(effects, a.Take()...)
		})
	}
	for take(begin); len(effects) > 0; {
		x := effects[0]
		effects = effects[1:]
		if r, is := x.(core.Reply); is {
			e.answer(r)
		} else if h := e.holderOf(x); h != nil {
			if f := h.carryOut(x); f != nil {
				take(func(a *core.Accounts) { a.Note(f) })
			}
		}
	}
}

func (e *Enforcer) answer(r core.Reply) {
	e.book.Do(func(*core.Accounts) {
		e.calls.of[r.Client].answer <- r
		delete(e.calls.of, r.Client)
	})
}

// holderOf returns the slice or pool of an effect; nil if core no longer has it.
func (e *Enforcer) holderOf(x core.Effect) (h adapter) {
	e.book.Do(func(*core.Accounts) {
		switch x := x.(type) {
		case core.Make:
			e.calls.holders[x.Generation] = e.calls.of[x.Client].made
		case core.HangUp:
			defer delete(e.calls.holders, x.Generation)
		case core.Emit:
			h = e.calls.holders[x.Ref.Generation]
			return
		}
		h = e.calls.holders[x.Key()]
	})
	return h
}

// know has a slice or pool carry out the effects of its generation.
func (e *Enforcer) know(h adapter, generation uint64) {
	e.book.Do(func(*core.Accounts) { e.calls.holders[generation] = h })
}
