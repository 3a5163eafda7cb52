// SPDX-License-Identifier: Apache-2.0

// Package guard has the enforcer's locks. A lock guards memory. A goroutine holds none while it waits for the disk, the driver or the kernel's
// files, and takes several in the order of their ranks. Builds with the race detector check both.
package guard

// Rank is where a lock stands in the order: one is locked while none of its rank or of a later one is held.
type Rank interface{ rank() int }

// The ranks, in their order.
type (
	Registry struct{} // which slices and pools there are
	Slice    struct{} // one slice
	Pool     struct{} // one pool
	Book     struct{} // what is given of each device
	Leaf     struct{} // all others
)

func (Registry) rank() int { return 1 }
func (Slice) rank() int    { return 2 }
func (Pool) rank() int     { return 3 }
func (Book) rank() int     { return 4 }
func (Leaf) rank() int     { return 5 }
