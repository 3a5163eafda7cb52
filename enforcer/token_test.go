// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"testing"
	"time"
)

// The user who showed too many wrong tokens is heard again when the minute is over; of users without end nobody keeps a list.
func TestWrongTokensAreCountedForAMinute(t *testing.T) {
	const alice, bob = 5001, 5002
	w := &wrongTokens{}
	for n := 1; n <= mostWrong; n++ {
		if w.tooMany(alice) {
			t.Fatalf("after %d wrong tokens", n-1)
		}
		if got := w.add(alice); got != n {
			t.Fatalf("%d are counted as %d", n, got)
		}
	}
	if !w.tooMany(alice) || w.tooMany(bob) {
		t.Fatal("not alice, or not alice alone")
	}
	w.by[alice].since = time.Now().Add(-wrongWindow + time.Second)
	if !w.tooMany(alice) {
		t.Error("before the minute is over")
	}
	w.by[alice].since = time.Now().Add(-wrongWindow - time.Second)
	if w.tooMany(alice) || len(w.by) != 0 {
		t.Error("after it")
	}
	for uid := range uint32(mostWrongUsers) {
		w.add(uid)
	}
	if !w.tooMany(1<<20) || len(w.by) != mostWrongUsers {
		t.Errorf("%d users are remembered", len(w.by))
	}
}
