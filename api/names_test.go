// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestNamesOfStrangersArePrintableAndBounded(t *testing.T) {
	long := strings.Repeat("é", 400)
	for given, want := range map[string]string{
		"train":                     "train",
		"registry/a:1@x":            "registry/a:1@x",
		"名":                         "名",
		"a\x1b[2J\nb":               `a\x1b[2J\nb`,
		"\u009b31m\u202e\xff":       `\u009b31m\u202e\xff`,
		`a\b"c'`:                    `a\b"c'`,
		long:                        long[:252] + "…",
		strings.Repeat("\x00", 300): strings.Repeat(`\x00`, 63) + `\…`,
		strings.Repeat("x", 256):    strings.Repeat("x", 256),
	} {
		got := Names{Name: given, Pod: given, Namespace: given, Image: given}.Bounded()
		if got != (Names{want, want, want, want}) || len(got.Name) > MaxName {
			t.Errorf("%.20q became %q, want %q", given, got.Name, want)
		}
		expect.NoError(t, got.checkNames(), got)
	}
}

func TestNamesThatCouldNotBeShownAreRefused(t *testing.T) {
	for _, text := range []string{"a\nb", "\x1b[2J", "\u009b", "\xff", strings.Repeat("x", MaxName+1)} {
		for _, n := range []Names{{Name: text}, {Pod: text}, {Namespace: text}, {Image: text}} {
			r := RegisterRequest{ID: "a", PID: 1, Quotas: []Quota{{Device: AllDevices, Bytes: 1}}, Names: n}
			if err := r.Validate(); err == nil || strings.ContainsAny(err.Error(), "\n\x1b\u009b") {
				t.Errorf("%q: %v", n, err)
			}
		}
	}
}
