// SPDX-License-Identifier: Apache-2.0

// Package policy decides what is done about memory that is held past a ledger: violations in, actions out.
//
// A process that holds memory and never attached is one: the interceptor attaches before it lets any call through that
// makes the driver take something, and a process whose attach fails is given nothing. One that attached may hold more
// than its lane says, since the driver takes memory for itself (code, local memory), and since memory that a sibling lent it
// becomes its own when the sibling ends. So it is named if that is more than the allowance, and more than that is done
// only if its slice is beyond its limit, which is what others suffer from.
//
// It must never do anything itself.
package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Policy is what is done about processes that hold memory past the ledger.
type Policy struct {
	Bypass    api.Action    // "" is api.Log
	Scope     api.Scope     // of api.Kill; "" is api.ScopeProcess
	Allowance uint64        // bytes that a process may hold beyond its charges; 0 is 1 GiB, argued for in docs/evidence/security.md
	Grace     time.Duration // throughout which it holds more before anything is done; 0 is half a second
}

// WithDefaults fills in what is not set.
func (p Policy) WithDefaults() Policy {
	p.Bypass = cmp.Or(p.Bypass, api.Log)
	p.Allowance = cmp.Or(p.Allowance, 1<<30)
	p.Grace = cmp.Or(p.Grace, 500*time.Millisecond)
	return p
}

// Violation is a process that holds memory past the ledger on one device.
type Violation struct {
	PID     int
	Command string
	Device  string
	Cause   string // api.BypassUnattached or api.BypassExcess
	Bytes   uint64 // past the ledger

	OverLimit bool // its slice holds more than it may there, or its pool does
	Record    bool // its slice refuses nothing
}

// Answer says what is done about a violation as long as it stands. done is what was before, "" if nothing was: tell says that
// this is more, and to be told.
func (p Policy) Answer(v Violation, done api.Action) (action api.Action, tell bool) {
	action = p.Bypass
	if v.Record || v.Cause == api.BypassExcess && !v.OverLimit {
		action = api.Log
	}
	return action, done == "" || action != done && action != api.Log
}

// Frozen says why a slice is granted nothing more; "" if it is. It is as long as violations are answered with api.Refuse, and, if
// it was for a reason before, until that is known to be over: unsettled says that it is not of some device.
func Frozen(was string, refused []Violation, unsettled bool) string {
	if len(refused) == 0 {
		if unsettled {
			return was
		}
		return ""
	}
	v := slices.MinFunc(refused, func(a, b Violation) int { return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.PID, b.PID)) })
	return fmt.Sprintf("process %d (%s) holds %s on %s past the ledger: no memory is granted until that is released", v.PID, v.Command, api.FormatSize(v.Bytes), v.Device)
}
