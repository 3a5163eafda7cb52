// SPDX-License-Identifier: Apache-2.0

// Package policy decides what to do about memory held past a ledger: violations in, actions out.
//
// Memory of a process that never attached is a violation: the interceptor attaches before the first call that allocates, and a process
// without a lane gets no memory. An attached process may hold more than its lane counts: the driver takes memory for itself (code, local
// memory), and memory lent by a sibling becomes the process's own when the sibling exits. Such an excess is reported above the allowance,
// and acted on only while the slice exceeds its limit, which is what harms others.
//
// The package must never act itself.
package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Policy configures the actions on processes that hold memory past the ledger.
type Policy struct {
	Bypass    api.Action    // "" is api.Log
	Scope     api.Scope     // scope of api.Kill; "" is api.ScopeProcess
	Allowance uint64        // bytes that a process may hold beyond its charges; 0 is 1 GiB, see docs/evidence/security.md
	Grace     time.Duration // duration of an excess before an action; 0 is 500 ms
}

// WithDefaults returns p with defaults for the fields that are not set.
func (p Policy) WithDefaults() Policy {
	p.Bypass = cmp.Or(p.Bypass, api.Log)
	p.Allowance = cmp.Or(p.Allowance, 1<<30)
	p.Grace = cmp.Or(p.Grace, 500*time.Millisecond)
	return p
}

// Violation is one process that holds memory past the ledger on one device.
type Violation struct {
	PID     int
	Command string
	Device  string
	Cause   string // api.BypassUnattached or api.BypassExcess
	Bytes   uint64 // past the ledger

	OverLimit bool // the slice, or its pool, exceeds its limit on the device
	Record    bool // the slice only records
}

// Answer returns the action on a violation while it lasts. done is the last action on it, or "". tell reports whether the action is new,
// and has to be reported.
func (p Policy) Answer(v Violation, done api.Action) (action api.Action, tell bool) {
	action = p.Bypass
	if v.Record || v.Cause == api.BypassExcess && !v.OverLimit {
		action = api.Log
	}
	return action, done == "" || action != done && action != api.Log
}

// Frozen returns the reason why a slice is granted no more memory; "" if it is not frozen. A slice is frozen while violations are answered with api.Refuse. If
// it was frozen before, it stays so while the state of some device is unknown (unsettled).
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
