// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/test/expect"
)

// Slices of any sizes that never stop working take turns. Each waits for the turns of those that waited before it, and two more at most: a quantum until
// room is kept for it, and the quantum of the slices that returned in that time.
func TestWaitingSliceReturnsWithinTurnsOfEarlierWaiters(t *testing.T) {
	const quantum, move, pace = 20 * time.Second, 2 * time.Second, time.Second
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := New(Config{Devices: []refusal.Device{{UUID: "a", Total: 100}}, Elastic: Elastic{Overcommit: 100_000, Asking: 9 * time.Second, MinResident: 5 * time.Second, Quantum: quantum}})
		slices, largest := 3+r.IntN(10), 20+r.IntN(60)
		for i := range slices {
			size := uint64(10 + r.IntN(largest))
			if i == 0 {
				size = uint64(100 - r.IntN(20))
			}
			c.Do(Register{Client: 1, Slice: Record{ID: fmt.Sprint("s", i), Elastic: true, Limits: Bytes{"a": size}, Quotas: []api.Quota{{Device: "a", Bytes: size}}}})
			answerAll(c)
		}
		returnBy := make(map[*holder]time.Duration) // when a waiter has to be back
		moves := make(map[time.Duration][]Effect)
		for now := pace; now < 15*time.Minute; now += pace {
			for _, e := range moves[now] {
				c.Note(answerTo(e))
			}
			c.Note(Tick{now})
			for _, h := range c.holders {
				c.Note(Used{Generation: h.Generation, Op: h.page, Bytes: Bytes{"a": h.Limits["a"]}, Active: h.Residence == Resident})
				if h.Residence != Resident {
					c.Do(AskReturn{h.ID})
				}
			}
			for effects := c.Take(); len(effects) > 0; effects = c.Take() {
				for _, e := range effects {
					switch e.(type) {
					case MoveOut, MoveIn:
						moves[now+move] = append(moves[now+move], e)
					default:
						c.Note(answerTo(e))
					}
				}
			}
			for _, h := range c.holders {
				switch _, known := returnBy[h]; {
				case h.waitingSince == 0:
					delete(returnBy, h)
				case !known:
					returnBy[h] = now + time.Duration(len(returnBy)+2)*(quantum+2*move+2*pace)
				case now > returnBy[h]:
					t.Fatalf("seed %d: %s, %d of 100, has waited from %s to %s beside %d others", seed, h.ID, h.Limits["a"], h.waitingSince, now, slices-1)
				}
			}
		}
	}
}

func TestPoolCreationBeyondLimitIsRefused(t *testing.T) {
	c := New(Config{})
	create := func(name string, made error) (err error) {
		c.Do(CreatePool{Client: 1, Pool: Record{ID: name}})
		for effects := c.Take(); len(effects) > 0; effects = c.Take() {
			for _, e := range effects {
				switch e := e.(type) {
				case Make:
					c.Note(Made{e.Op, made})
				case Reply:
					err = e.Err
				default:
					c.Note(answerTo(e))
				}
			}
		}
		return err
	}
	expect.ErrorIs(t, create("fails", errNo), errNo, "a pool without a ledger")
	for n := range api.MaxPools {
		expect.NoError(t, create(fmt.Sprint(n), nil), "pool", n)
	}
	expect.ErrorIs(t, create("more", nil), api.ErrBadRequest, "one more than the limit")
	c.Do(DeletePool{Client: 1, ID: "0"})
	answerAll(c)
	expect.NoError(t, create("more", nil), "after a deletion")
}
