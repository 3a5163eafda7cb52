// SPDX-License-Identifier: Apache-2.0

// Package await waits for events in tests. Its timeout detects a hang, not a slow machine.
package await

import (
	"testing"
	"time"
)

// Patience bounds each wait for an event that normally takes milliseconds.
const Patience = time.Minute

// That polls until the condition holds.
func That(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", Patience, what)
		}
	}
}

// Value receives from c. A closed channel yields the zero value.
func Value[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
		t.Fatalf("after %v still not: %s", Patience, what)
		panic("unreachable")
	}
}

// Quiet fails the test if the event happens within d. On a slow machine it can miss the event, but never fails by mistake.
func Quiet(t testing.TB, what string, d time.Duration, happens func() bool) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(2 * time.Millisecond) {
		if happens() {
			t.Fatalf("within %v: %s", d, what)
		}
		if time.Now().After(end) {
			return
		}
	}
}

// Paced returns the most events that a rate limiter with this burst and interval has let pass since began, however long that is.
func Paced(began time.Time, burst int, interval time.Duration) int {
	return burst + int(time.Since(began)/interval)
}

// Once repeats an attempt until one takes less than limit. A stall fails one attempt, a slow code path all of them.
func Once(t testing.TB, what string, limit time.Duration, attempt func() time.Duration) {
	t.Helper()
	var took time.Duration
	for range 20 {
		if took = attempt(); took < limit {
			return
		}
		t.Logf("%s: %v", what, took)
	}
	t.Errorf("%s: each of 20 attempts took %v or longer, the last %v", what, limit, took)
}
