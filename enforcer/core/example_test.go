// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/core"
)

// A host passes a command, carries out the effects, and notes the facts that answer them, until there are no more.
func Example() {
	c := core.New(core.Config{})
	c.Do(core.Register{Client: 1, Slice: core.Record{ID: "train", Limits: core.Bytes{"GPU-0": 4 << 30}}})
	for effects := c.Take(); len(effects) > 0; effects = c.Take() {
		for _, e := range effects {
			switch e := e.(type) {
			case core.Make:
				fmt.Println("make the ledger with", e.Limits)
				c.Note(core.Made{Op: e.Op})
			case core.Store:
				fmt.Println("store the record")
				c.Note(core.Stored{Op: e.Op})
			case core.Listen:
				fmt.Println("open the attach socket")
				c.Note(core.Opened{Op: e.Op})
			case core.Emit:
				fmt.Println("event:", e.Event.Kind)
			case core.Reply:
				fmt.Println("answer client", e.Client, e.Err)
			}
		}
	}
	// Output:
	// make the ledger with map[GPU-0:4294967296]
	// store the record
	// open the attach socket
	// event: registered
	// answer client 1 <nil>
}
