// SPDX-License-Identifier: Apache-2.0

package api

// Action is the response to a process that holds memory past the ledger. It is the one of the operator's policy, or a milder one
// if the evidence does not justify that.
type Action string

const (
	Log    Action = "log"    // report the process, and charge its memory to its slice
	Refuse Action = "refuse" // grant the slice nothing more until the process exits
	Kill   Action = "kill"   // kill the process
)

// Scope is the scope of Kill.
type Scope string

const (
	ScopeProcess Scope = "process" // the offending process
	ScopeSlice   Scope = "slice"   // all processes of its slice
)

// Ways to hold memory past the ledger.
const (
	// BypassUnattached is a process that holds memory and never attached: it has no interceptor, or bypasses it.
	BypassUnattached = "unattached"
	// BypassExcess is an attached process that holds more memory than its charges and the driver's own overhead explain.
	BypassExcess = "excess"
	// BypassOverwritten is a slice or a pool with values in its page that the interceptor never writes. The process that wrote
	// them cannot be determined.
	BypassOverwritten = "overwritten"
)

// Preload is where the preload file of the interceptor is for a container's process that never attached.
type Preload string

const (
	// PreloadBound: the file is at /etc/ld.so.preload. The program does not load it (static, or linked with musl), or bypasses
	// the interceptor.
	PreloadBound Preload = "bound"
	// PreloadMoved: the file is elsewhere in the process's root, as /etc was renamed or is a link in the image.
	PreloadMoved Preload = "moved"
	// PreloadCovered: a later mount over /etc hides the file.
	PreloadCovered Preload = "covered"
	// PreloadNone: the file is not in the process's root. The process is in a chroot, or the file was unmounted, or removed from
	// outside.
	PreloadNone Preload = "none"
)
