// SPDX-License-Identifier: Apache-2.0

package must

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// recorder is a test that says what it was told; Fatalf does not end it.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.said += fmt.Sprintf("fatal: "+format, args...)
}

func TestAChecksFailureSaysWhatItFound(t *testing.T) {
	err := fmt.Errorf("read: %w", io.EOF)
	for name, c := range map[string]struct {
		check func(t testing.TB)
		says  string // nothing if the check passes
	}{
		"Do":           {func(t testing.TB) { Do(t, err, "of", []byte("a")) }, "fatal: of a: read: EOF"},
		"Do nothing":   {func(t testing.TB) { Do(t, nil) }, ""},
		"Try":          {func(t testing.TB) { Try(t, err) }, "read: EOF"},
		"Hold":         {func(t testing.TB) { Hold(t, false, 3, "are left") }, "3 are left"},
		"Hold so":      {func(t testing.TB) { Hold(t, true, "it is not so") }, ""},
		"Error":        {func(t testing.TB) { Error(t, nil, "x") }, "x: no error"},
		"Error, one":   {func(t testing.TB) { Error(t, err) }, ""},
		"Is":           {func(t testing.TB) { Is(t, err, io.ErrUnexpectedEOF) }, "got read: EOF, want unexpected EOF"},
		"Is it":        {func(t testing.TB) { Is(t, err, io.EOF) }, ""},
		"Say":          {func(t testing.TB) { Say(t, err, "write") }, `got read: EOF, want an error that says "write"`},
		"Say nothing":  {func(t testing.TB) { Say(t, nil, "") }, `got <nil>, want an error that says ""`},
		"Say it":       {func(t testing.TB) { Say(t, err, "read") }, ""},
		"IsSaying":     {func(t testing.TB) { IsSaying(t, err, io.EOF, "write") }, "want an error that says"},
		"IsSaying, is": {func(t testing.TB) { IsSaying(t, err, io.ErrNoProgress, "read") }, "want multiple Read calls"},
		"Contain":      {func(t testing.TB) { Contain(t, "abc", "d") }, "there is no \"d\" in\nabc"},
		"Contain it":   {func(t testing.TB) { Contain(t, "abc", "b") }, ""},
		"Equal":        {func(t testing.TB) { Equal(t, "a", "b", 7) }, `7: got "a", want "b"`},
		"Equal are":    {func(t testing.TB) { Equal(t, 1, 1) }, ""},
		"Be":           {func(t testing.TB) { Be(t, 1, 2) }, "fatal: got 1, want 2"},
		"EqualSlices":  {func(t testing.TB) { EqualSlices(t, []int{1}, []int{2}) }, "got [1], want [2]"},
		"Len":          {func(t testing.TB) { Len(t, map[string]int{"a": 1}, 2) }, "fatal: got map[a:1], want 2 elements"},
		"Len is":       {func(t testing.TB) { Len(t, []int(nil), 0) }, ""},
		"Output":       {func(t testing.TB) { Output("text", err)(t, "cc") }, "fatal: cc: read: EOF\ntext"},
		"Refused":      {func(t testing.TB) { Refused("text", nil)(t, "text") }, "got <nil>, want a refusal"},
		"Refused, but": {func(t testing.TB) { Refused("text", err)(t, "more") }, `want a refusal that says "more"`},
		"Refused, so":  {func(t testing.TB) { Refused("text", err)(t, "text") }, ""},
	} {
		var r recorder
		c.check(&r)
		if (r.said == "") != (c.says == "") || !strings.Contains(r.said, c.says) {
			t.Errorf("%s: said %q, want %q", name, r.said, c.says)
		}
	}
}
