// SPDX-License-Identifier: Apache-2.0

//go:build !race

package guard

import "sync"

// Mutex is a sync.Mutex with a rank.
type Mutex[R Rank] struct{ sync.Mutex }

// MayWait marks an operation that may block. Under the race detector it panics if the calling goroutine holds a Mutex.
func MayWait(string) {}
