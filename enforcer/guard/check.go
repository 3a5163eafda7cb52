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

// Mutex is a sync.Mutex of a rank.
type Mutex[R Rank] struct{ mu sync.Mutex }

// held has the ranks that each goroutine holds, in the order in which they were locked.
var held struct {
	sync.Mutex
	by map[uint64][]int
}

// Lock panics if the goroutine holds a lock of this rank or of a later one.
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

// Unlock is called by the goroutine that called Lock.
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

// MayWait is called where something begins that may wait. Under the race detector it panics if this goroutine holds a Mutex.
func MayWait(what string) {
	held.Lock()
	has := slices.Clone(held.by[goroutine()])
	held.Unlock()
	if len(has) > 0 {
		panic(fmt.Sprintf("%s may wait, and locks of ranks %v are held", what, has))
	}
}

// goroutine is the number of the one that calls, which stands at the beginning of its stack.
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
