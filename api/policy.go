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

// Preload is where a process of a container that never attached has the file that would have loaded the interceptor.
type Preload string

const (
	// PreloadBound is at /etc/ld.so.preload: the program is without the interceptor by itself (static, or linked with musl), or goes around it.
	PreloadBound Preload = "bound"
	// PreloadMoved is elsewhere in the process's root: /etc was renamed. It is at the end of the link in an image whose /etc is one.
	PreloadMoved Preload = "moved"
	// PreloadCovered is below what was mounted over /etc afterwards.
	PreloadCovered Preload = "covered"
	// PreloadNone is nowhere in the process's root: the process is in a chroot, or the file was unmounted, or removed from outside.
	PreloadNone Preload = "none"
)
