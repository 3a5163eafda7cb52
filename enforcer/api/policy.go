// SPDX-License-Identifier: Apache-2.0

package api

// Action is what is done about a process that holds memory past the ledger: as the operator's policy has it, or less
// where the policy asks for more than there is reason for.
type Action string

const (
	Log    Action = "log"    // it is named, and what it holds is charged to its slice
	Refuse Action = "refuse" // nothing more is granted to its slice, until it is gone
	Kill   Action = "kill"   // it is killed
)

// Scope of Kill.
type Scope string

const (
	ScopeProcess Scope = "process" // the process that was found
	ScopeSlice   Scope = "slice"   // all processes of its slice
)

// How memory can be held past the ledger.
const (
	// BypassUnattached is a process that holds memory and never attached: it has no interceptor, or goes around it.
	BypassUnattached = "unattached"
	// BypassExcess is a process that attached, and holds more beyond its charges than the driver takes for itself.
	BypassExcess = "excess"
	// BypassOverwritten is a slice or a pool whose page holds what no honest process writes. Who wrote it nobody can tell.
	BypassOverwritten = "overwritten"
)
