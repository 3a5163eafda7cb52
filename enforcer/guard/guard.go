// SPDX-License-Identifier: Apache-2.0

// Package guard has the enforcer's locks. A lock guards memory. A goroutine holds no lock while it waits for the disk, the driver or the
// kernel's files, and takes several locks in the order of their ranks. Builds with the race detector check both.
package guard

// Rank is a lock's place in the order: a goroutine may take a lock only while it holds none of the same or a later rank.
type Rank interface{ rank() int }

// The ranks, in order.
type (
	Registry struct{} // the sets of slices and pools
	Slice    struct{} // one slice
	Pool     struct{} // one pool
	Book     struct{} // the book of admission: bytes granted on each device
	Leaf     struct{} // all others
)

func (Registry) rank() int { return 1 }
func (Slice) rank() int    { return 2 }
func (Pool) rank() int     { return 3 }
func (Book) rank() int     { return 4 }
func (Leaf) rank() int     { return 5 }
