// SPDX-License-Identifier: Apache-2.0

//go:build race

package guard

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
)

// Mutex is a sync.Mutex with a rank.
type Mutex[R Rank] struct{ mu sync.Mutex }

// held maps each goroutine to the ranks of its locks, in locking order.
var held struct {
	sync.Mutex
	by map[uint64][]int
}

// Lock panics if the goroutine holds a lock of the same or a later rank.
func (m *Mutex[R]) Lock() {
	var r R
	id := goroutine()
	held.Lock()
	has := held.by[id]
	held.Unlock()
	if n := len(has); n > 0 && has[n-1] >= r.rank() {
		panic(fmt.Sprintf("a lock of rank %d is taken while one of rank %d is held", r.rank(), has[n-1]))
	}
	m.mu.Lock()
	held.Lock()
	defer held.Unlock()
	if held.by == nil {
		held.by = make(map[uint64][]int)
	}
	held.by[id] = append(held.by[id], r.rank())
}

// Unlock must run on the goroutine that called Lock.
func (m *Mutex[R]) Unlock() {
	var r R
	id := goroutine()
	held.Lock()
	has := held.by[id]
	at := slices.Index(has, r.rank())
	if at < 0 {
		held.Unlock()
		panic(fmt.Sprintf("a lock of rank %d is released by a goroutine that has not taken it", r.rank()))
	}
	if has = slices.Delete(has, at, at+1); len(has) == 0 {
		delete(held.by, id)
	} else {
		held.by[id] = has
	}
	held.Unlock()
	m.mu.Unlock()
}

// MayWait marks an operation that may block. Under the race detector it panics if the calling goroutine holds a Mutex.
func MayWait(what string) {
	held.Lock()
	has := slices.Clone(held.by[goroutine()])
	held.Unlock()
	if len(has) > 0 {
		panic(fmt.Sprintf("%s may wait, and locks of ranks %v are held", what, has))
	}
}

// goroutine returns the caller's goroutine number, which is at the start of its stack trace.
func goroutine() uint64 {
	var buffer [64]byte
	text := bytes.TrimPrefix(buffer[:runtime.Stack(buffer[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(text, []byte(" "))
	id, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("the goroutine's number in %q: %v", buffer[:], err))
	}
	return id
}
