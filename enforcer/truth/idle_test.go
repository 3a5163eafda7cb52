// SPDX-License-Identifier: Apache-2.0

package truth

import (
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
)

// A list stays valid only while all its conditions hold.
func TestWhenAListStands(t *testing.T) {
	const limit = 10 * time.Second
	now := Totals{Used: 10, Lanes: 1}
	for _, c := range []struct {
		what          string
		before, after Totals // around the list
		open          bool
		later         int // milliseconds
		totals        Totals
		want          bool
	}{
		{"nothing has changed", now, now, false, 1000, now, true},
		{"more is in use", now, now, false, 1000, Totals{11, 1}, false},
		{"a lane was written", now, now, false, 1000, Totals{10, 2}, false},
		{"more bytes were in use before the list", Totals{11, 1}, now, false, 1000, now, false},
		{"a lane was written during the list", Totals{10, 2}, now, false, 1000, now, false},
		{"something was open", now, now, true, 1000, now, false},
		{"the list is just young enough", now, now, false, 9999, now, true},
		{"it is too old", now, now, false, 10000, now, false},
	} {
		expect.Equal(t, Listed(begin, c.before, c.after, c.open).Stands(at(c.later), c.totals, limit), c.want, c.what)
	}
	expect.True(t, !(Idle{}).Stands(begin, Totals{}, limit), "the zero value counts as a list")
}
