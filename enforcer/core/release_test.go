// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/test/must"
)

// Also while a part of the slice's memory is on the host, from where it comes back.
func TestBytesBeyondALoweredLimitCountUntilTheyAreReleased(t *testing.T) {
	c := New(Config{Devices: []refusal.Device{{UUID: "a", Total: 100}}})
	quota := func(n uint64) []api.Quota { return []api.Quota{{Device: "a", Bytes: n}} }
	do := func(cmd Command) {
		c.Do(cmd)
		answerAll(c)
	}
	do(Register{Client: 1, Slice: Record{ID: "s", Limits: Bytes{"a": 60}, Quotas: quota(60)}})
	do(Change{Client: 1, ID: "s", Limits: Bytes{"a": 10}, Quotas: quota(10)})
	h := c.slices["s"]
	counts := func(want uint64, when string) {
		t.Helper()
		must.Equal(t, h.counted["a"], want, "bytes counted", when)
	}
	uses := func(op, bytes uint64) {
		c.Note(Used{Generation: h.Generation, Op: op, Bytes: Bytes{"a": bytes, "b": 5}})
		answerAll(c)
	}
	counts(60, "though all may be in use")
	uses(h.page-1, 5)
	counts(60, "by figures from before the limit was set")
	uses(h.page, 50)
	counts(50, "as they are in use")
	uses(h.page, 55)
	counts(50, "though more is in use: no limit allows that")

	c.Do(Suspend{Client: 1, ID: "s"})
	for effects := c.Take(); len(effects) > 0; effects = c.Take() {
		for _, e := range effects {
			if move, is := e.(MoveOut); is {
				c.Note(Moved{Op: move.Op, At: Returning, Err: errNo})
			} else {
				c.Note(answerTo(e))
			}
		}
	}
	uses(h.page, 20)
	counts(50, "with a part on either side")
	do(Resume{Client: 1, ID: "s"})
	counts(50, "once all is back")
	uses(h.page, 9)
	counts(10, "with less in use than the limit")
}
