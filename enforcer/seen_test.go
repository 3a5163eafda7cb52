// SPDX-License-Identifier: Apache-2.0

package enforcer

import "testing"

// A comparison stands for the next ones only if all of what makes it so is so.
func TestWhenAComparisonStandsForTheNext(t *testing.T) {
	now := glance{used: 10, lanes: 1}
	for _, c := range []struct {
		what  string
		first found // of two comparisons
		then  found
		known bool
		at    glance // the next glance
		want  bool
	}{
		{"nothing has changed", found{listed: 8}, found{listed: 8}, true, now, true},
		{"more is in use", found{listed: 8}, found{listed: 8}, true, glance{11, 1}, false},
		{"a lane was written", found{listed: 8}, found{listed: 8}, true, glance{10, 2}, false},
		{"less was listed while as much was in use", found{listed: 8}, found{listed: 7}, true, now, false},
		{"it is to be done again", found{listed: 8}, found{listed: 8, again: true}, true, now, false},
		{"something was open", found{listed: 8}, found{listed: 8, open: true}, true, now, false},
		{"it was open before, and is not now", found{listed: 8, open: true}, found{listed: 8}, true, now, true},
		{"the driver did not say how much is in use", found{listed: 8}, found{listed: 8}, false, now, false},
	} {
		var s seen
		s.compared(now, c.first, true)
		if s.same(now) {
			t.Errorf("%s: one comparison is believed", c.what)
		}
		s.compared(now, c.then, c.known)
		if got := s.same(c.at); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	var s seen
	s.compared(now, found{}, true)
	s.compared(now, found{}, true)
	stood := 0
	for s.same(now) {
		if stood++; stood > 10*glances {
			break
		}
	}
	if stood != glances {
		t.Errorf("it stood for %d, not %d", stood, glances)
	}
}
