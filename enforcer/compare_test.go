// SPDX-License-Identifier: Apache-2.0

package enforcer

import "testing"

// What is charged for a process beyond its lane goes up at once, and down when it is sure that it was too much.
func TestWhichLooksAnExcessFollows(t *testing.T) {
	type look struct {
		bounds
		number uint64
	}
	atWork := func(n int, b bounds) (looks []look) {
		for i := range n {
			looks = append(looks, look{b, uint64(10 + i)})
		}
		return looks
	}
	for _, c := range []struct {
		what  string
		looks []look // beginning with 5 charged
		want  uint64
	}{
		{"the least of more is believed at once", []look{{bounds{7, 9}.and(bounds{8, 8}), 2}}, 7},
		{"one low look is not", []look{{bounds{2, 2}, 1}}, 5},
		{"two are, of a process that stands still", []look{{bounds{2, 2}, 1}, {bounds{3, 3}, 1}}, 3},
		{"the higher of the two", []look{{bounds{3, 3}, 1}, {bounds{2, 2}, 1}}, 3},
		{"and the next one's", []look{{bounds{3, 3}, 1}, {bounds{2, 2}, 1}, {bounds{2, 2}, 1}}, 2},
		{"a high one in between begins anew", []look{{bounds{2, 2}, 1}, {bounds{5, 5}, 1}, {bounds{2, 2}, 1}}, 5},
		{"of one at work two say nothing", atWork(2, bounds{2, 2}), 5},
		{"nor do several", atWork(lows-1, bounds{2, 2}), 5},
		{"many do", atWork(lows, bounds{2, 2}), 2},
		{"to the most that they found", append([]look{{bounds{1, 2}.and(bounds{2, 4}), 99}}, atWork(lows-1, bounds{1, 2})...), 4},
		{"if none of them was high", append(atWork(lows-1, bounds{1, 2}), look{bounds{2, 5}, 99}), 5},
		{"they count from the last high one", append(append(atWork(lows-1, bounds{1, 2}), look{bounds{2, 5}, 98}), look{bounds{1, 2}, 99}), 5},
		{"once it stands still it is as for any", append(atWork(3, bounds{4, 4}), look{bounds{2, 2}, 99}, look{bounds{2, 2}, 99}), 2},
	} {
		x := excess{charged: 5, number: 1}
		for _, l := range c.looks {
			x.believe(l.bounds, l.number)
		}
		if x.charged != c.want {
			t.Errorf("%s: %d is charged, expected %d", c.what, x.charged, c.want)
		}
	}
}
