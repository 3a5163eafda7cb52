// SPDX-License-Identifier: Apache-2.0

package must

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

// recorder is a test that keeps its messages; Fatalf does not end it.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.said += fmt.Sprintf("fatal: "+format, args...)
}

func TestFailedCheckPrintsItsValue(t *testing.T) {
	err := fmt.Errorf("read: %w", io.EOF)
	for name, c := range map[string]struct {
		check func(t testing.TB)
		says  string // empty if the check passes
	}{
		"Do":                    {func(t testing.TB) { Do(t, err, "of", []byte("a")) }, "fatal: of a: read: EOF"},
		"Do nothing":            {func(t testing.TB) { Do(t, nil) }, ""},
		"NoError":               {func(t testing.TB) { expect.NoError(t, err) }, "read: EOF"},
		"True":                  {func(t testing.TB) { expect.True(t, false, 3, "are left") }, "3 are left"},
		"True so":               {func(t testing.TB) { expect.True(t, true, "it is not so") }, ""},
		"Error":                 {func(t testing.TB) { expect.Error(t, nil, "x") }, "x: no error"},
		"Error, one":            {func(t testing.TB) { expect.Error(t, err) }, ""},
		"ErrorIs":               {func(t testing.TB) { expect.ErrorIs(t, err, io.ErrUnexpectedEOF) }, "got read: EOF, want unexpected EOF"},
		"ErrorIs it":            {func(t testing.TB) { expect.ErrorIs(t, err, io.EOF) }, ""},
		"ErrorContains":         {func(t testing.TB) { expect.ErrorContains(t, err, "write") }, `got read: EOF, want an error with "write"`},
		"ErrorContains nothing": {func(t testing.TB) { expect.ErrorContains(t, nil, "") }, `got <nil>, want an error with ""`},
		"ErrorContains it":      {func(t testing.TB) { expect.ErrorContains(t, err, "read") }, ""},
		"ErrorSays":             {func(t testing.TB) { expect.ErrorSays(t, err, io.EOF, "write") }, "want an error with"},
		"ErrorSays, is":         {func(t testing.TB) { expect.ErrorSays(t, err, io.ErrNoProgress, "read") }, "want multiple Read calls"},
		"Contains":              {func(t testing.TB) { expect.Contains(t, "abc", "d") }, "there is no \"d\" in\nabc"},
		"Contains it":           {func(t testing.TB) { expect.Contains(t, "abc", "b") }, ""},
		"expect.Equal":          {func(t testing.TB) { expect.Equal(t, "a", "b", 7) }, `7: got "a", want "b"`},
		"expect.Equal are":      {func(t testing.TB) { expect.Equal(t, 1, 1) }, ""},
		"Equal":                 {func(t testing.TB) { Equal(t, 1, 2) }, "fatal: got 1, want 2"},
		"EqualSlices":           {func(t testing.TB) { expect.EqualSlices(t, []int{1}, []int{2}) }, "got [1], want [2]"},
		"Len":                   {func(t testing.TB) { Len(t, map[string]int{"a": 1}, 2) }, "fatal: got map[a:1], want 2 elements"},
		"Len is":                {func(t testing.TB) { Len(t, []int(nil), 0) }, ""},
		"Output":                {func(t testing.TB) { Output("text", err)(t, "cc") }, "fatal: cc: read: EOF\ntext"},
		"Refused":               {func(t testing.TB) { expect.Refused("text", nil)(t, "text") }, "got <nil>, want a refusal"},
		"Refused, but":          {func(t testing.TB) { expect.Refused("text", err)(t, "more") }, `want a refusal with "more"`},
		"Refused, so":           {func(t testing.TB) { expect.Refused("text", err)(t, "text") }, ""},
	} {
		var r recorder
		c.check(&r)
		if (r.said == "") != (c.says == "") || !strings.Contains(r.said, c.says) {
			t.Errorf("%s: said %q, want %q", name, r.said, c.says)
		}
	}
}
