// SPDX-License-Identifier: Apache-2.0

//go:build race

package guard

import (
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestALockIsTakenInTheOrderOfRanks(t *testing.T) {
	var slice, other Mutex[Slice]
	var pool Mutex[Pool]
	slice.Lock()
	pool.Lock()
	expect.True(t, panics(other.Lock), "a slice's lock was taken while a pool's was held")
	slice.Unlock() // in any order
	pool.Unlock()
	other.Lock()
	expect.True(t, panics(slice.Lock), "two slices' locks are held")
	other.Unlock()
	expect.True(t, panics(other.Unlock), "a lock that is not held was released")
}

func TestNothingWaitsWhileALockIsHeld(t *testing.T) {
	var m Mutex[Leaf]
	m.Lock()
	expect.True(t, panics(func() { MayWait("the disk") }), "it waits with a lock held")
	done := make(chan bool)
	go func() { done <- panics(func() { MayWait("the disk") }) }()
	expect.True(t, !<-done, "a goroutine without a lock may not wait, since another one has a lock")
	m.Unlock()
	MayWait("the disk")
}
