// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// answer carries out the effects of a core at once, without a failure.
func answerAll(c *Core) {
	for effects := c.Take(); len(effects) > 0; effects = c.Take() {
		for _, e := range effects {
			if f := answerTo(e); f != nil {
				c.Note(f)
			}
		}
	}
}

// answerTo returns the fact that answers an effect; nil if none does.
func answerTo(e Effect) Fact {
	switch e := e.(type) {
	case Make:
		return Made{Op: e.Op}
	case Store:
		return Stored{Op: e.Op}
	case Forget:
		return Stored{Op: e.Op}
	case Listen:
		return Opened{Op: e.Op}
	case Limit:
		return Limited{Op: e.Op}
	case Close:
		return Limited{Op: e.Op}
	case MoveOut:
		return Moved{Op: e.Op, At: Away}
	case MoveIn:
		return Moved{Op: e.Op}
	}
	return nil
}

// BenchmarkRegister registers and ends a slice beside 10,000 others, with a tick for every hundred.
func BenchmarkRegister(b *testing.B) {
	c := New(Config{Devices: []refusal.Device{{UUID: "a", Total: 1 << 50}, {UUID: "b", Total: 1 << 50}}})
	register := func(id string) {
		c.Do(Register{Client: 1, Slice: Record{ID: id, Tenant: "t", Limits: Bytes{"a": 1 << 30, "b": 1 << 30}}})
		answerAll(c)
	}
	for i := range 10_000 {
		register(fmt.Sprint("s", i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		register("late")
		c.Note(Empty{Generation: c.lastGeneration})
		answerAll(c)
		if i%100 == 0 {
			c.Note(Tick{time.Duration(i) * time.Millisecond})
		}
	}
}
