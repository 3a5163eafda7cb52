// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

const tail = " S 42 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11"

func TestAProgramsNameCannotForgeItsStatus(t *testing.T) {
	for _, name := range []string{"sleep", "a b", "a) R 1 (b", ") S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "\n", ")", "("} {
		s, err := parseStat([]byte("7 (" + name + ")" + tail))
		if err != nil || s.ppid != 42 || s.start != 987654 {
			t.Errorf("name %q: got %+v, %v", name, s, err)
		}
	}
}

func TestAStatusThatIsNoneIsAnError(t *testing.T) {
	for _, s := range []string{"", "7", "7 (a", "7 (a)", "7 (a) S 1 2 3", "7 (a) S x 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654"} {
		if got, err := parseStat([]byte(s)); err == nil {
			t.Errorf("%q: got %+v", s, got)
		}
	}
	for _, s := range []string{"", "NSpid:\n", "NSpid:\tx\n", "Name:\tNSpid: 7\n"} {
		if got, _, err := parseNSPID([]byte(s)); err == nil {
			t.Errorf("%q: got %d", s, got)
		}
	}
}

func TestTheInnermostNamespaceCounts(t *testing.T) {
	for s, want := range map[string]struct {
		pid    int
		nested bool
	}{
		"Name:\tx\nNSpid:\t4711\nFoo:\t1\n":      {4711, false},
		"Name:\tx\nNSpid:\t4711\t23\t1\nNSid:\n": {1, true},
	} {
		if pid, nested, err := parseNSPID([]byte(s)); err != nil || pid != want.pid || nested != want.nested {
			t.Errorf("%q: got %d, %v, %v, want %v", s, pid, nested, err, want)
		}
	}
}

// The real, effective, saved and filesystem ids; those of a setuid program differ.
func TestAProcessIsItsUsersIfAllItsUserIDsAre(t *testing.T) {
	for s, want := range map[string]bool{
		"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\n": true,
		"Uid:\t0\t7\t7\t7\n":                             false,
		"Uid:\t7\t0\t7\t7\n":                             false,
		"Uid:\t7\t7\t0\t7\n":                             false,
		"Uid:\t7\t7\t7\t0\n":                             false,
		"Uid:\t7\t7\t7\n":                                false,
		"Uid:\t77\t77\t77\t77\n":                         false,
		"Gid:\t7\t7\t7\t7\n":                             false,
		"":                                               false,
	} {
		expect.Equal(t, ownedBy([]byte(s), 7), want, s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("7 (a)" + tail))
	f.Add([]byte("NSpid:\t1\t2\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseStat(b)
		_, _, _ = parseNSPID(b)
	})
}
