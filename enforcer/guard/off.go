// SPDX-License-Identifier: Apache-2.0

//go:build !race

package guard

import "sync"

// Mutex is a sync.Mutex of a rank.
type Mutex[R Rank] struct{ sync.Mutex }

// MayWait is called where something begins that may wait. Under the race detector it panics if this goroutine holds a Mutex.
func MayWait(string) {}
