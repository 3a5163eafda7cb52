// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestActionsOnViolations(t *testing.T) {
	never := Violation{Cause: api.BypassUnattached}
	within := Violation{Cause: api.BypassExcess}
	beyond := Violation{Cause: api.BypassExcess, OverLimit: true}
	record := Violation{Cause: api.BypassUnattached, Record: true, OverLimit: true}
	for _, c := range []struct {
		what   string
		policy api.Action
		v      Violation
		done   api.Action
		want   api.Action
		tell   bool
	}{
		{"it is named", api.Log, never, "", api.Log, true},
		{"once", api.Log, never, api.Log, api.Log, false},
		{"it is killed", api.Kill, never, "", api.Kill, true},
		{"an action repeats and is reported once", api.Kill, never, api.Kill, api.Kill, false},
		{"an attached process is reported while the slice is within its limit", api.Kill, within, "", api.Log, true},
		{"and killed beyond it", api.Kill, beyond, "", api.Kill, true},
		{"which is told", api.Kill, beyond, api.Log, api.Kill, true},
		{"a return to within the limit is not reported", api.Refuse, within, api.Refuse, api.Log, false},
		{"a slice that only records is never acted on", api.Kill, record, "", api.Log, true},
	} {
		action, tell := Policy{Bypass: c.policy}.Answer(c.v, c.done)
		if action != c.want || tell != c.tell {
			t.Errorf("%s: %s, told: %v", c.what, action, tell)
		}
	}
}

func TestHowLongASliceIsFrozen(t *testing.T) {
	one := Violation{PID: 7, Command: "a", Device: "GPU-1", Bytes: 1 << 30}
	other := Violation{PID: 3, Command: "b", Device: "GPU-2", Bytes: 1 << 20}
	for _, c := range []struct {
		what      string
		was       string
		refused   []Violation
		unsettled bool
		want      string // substring of why
	}{
		{"without a violation", "", nil, false, ""},
		{"while a device is unknown", "", nil, true, ""},
		{"during a violation", "", []Violation{one}, false, "process 7 (a) holds 1GiB on GPU-1"},
		{"during a violation while a device is unknown", "", []Violation{one}, true, "process 7 (a) holds 1GiB on GPU-1"},
		{"any order gives the same reason", "", []Violation{other, one}, false, "process 7 (a)"},
		{"a later violation gives another reason", "process 7", []Violation{other}, false, "process 3 (b)"},
		{"still frozen while a device is unknown", "process 7", nil, true, "process 7"},
		{"then it is", "process 7", nil, false, ""},
	} {
		if got := Frozen(c.was, c.refused, c.unsettled); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}

func TestDefaultsOfAPolicy(t *testing.T) {
	want := Policy{Bypass: api.Log, Allowance: 1 << 30, Grace: 500 * time.Millisecond}
	expect.Equal(t, (Policy{}).WithDefaults(), want)
	set := Policy{api.Kill, api.ScopeSlice, 1, 2}
	expect.Equal(t, set.WithDefaults(), set)
}
