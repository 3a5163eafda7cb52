// SPDX-License-Identifier: Apache-2.0

// Package must fails a test at an error that it does not expect, or at a value that is not what it should be.
package must

import (
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Do ends the test if err is one. Each check of this package prints `what` before the value that it complains of.
func Do(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s%v", said(what), err)
	}
}

// Try fails the test if err is one, and lets it continue, as all checks below do.
func Try(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s%v", said(what), err)
	}
}

// Hold fails the test unless a condition holds; `what` says what is wrong.
func Hold(t testing.TB, holds bool, what ...any) {
	t.Helper()
	if !holds {
		t.Errorf("%s", strings.TrimSuffix(said(what), ": "))
	}
}

// Error fails the test if err is nil.
func Error(t testing.TB, err error, what ...any) {
	t.Helper()
	if err == nil {
		t.Errorf("%sno error", said(what))
	}
}

// Is fails the test unless err is `want`.
func Is(t testing.TB, err, want error, what ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%sgot %v, want %v", said(what), err, want)
	}
}

// Say fails the test if err is nil, or does not have `part` in its message.
func Say(t testing.TB, err error, part string, what ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%sgot %v, want an error that says %q", said(what), err, part)
	}
}

// IsSaying is Is and Say of one error.
func IsSaying(t testing.TB, err, want error, part string, what ...any) {
	t.Helper()
	Is(t, err, want, what...)
	Say(t, err, part, what...)
}

// Contain fails the test if `text` does not contain `part`.
func Contain(t testing.TB, text, part string, what ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%sthere is no %q in\n%s", said(what), part, text)
	}
}

// Equal fails the test if `got` is not `want`.
func Equal[T comparable](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%sgot %s, want %s", said(what), shown(got), shown(want))
	}
}

// Be is Equal that ends the test.
func Be[T comparable](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%sgot %s, want %s", said(what), shown(got), shown(want))
	}
}

// EqualSlices is Equal of slices.
func EqualSlices[T comparable](t testing.TB, got, want []T, what ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%sgot %s, want %s", said(what), shown(got), shown(want))
	}
}

// Len ends the test if a list or a map has not `want` elements.
func Len(t testing.TB, list any, want int, what ...any) {
	t.Helper()
	if reflect.ValueOf(list).Len() != want {
		t.Fatalf("%sgot %+v, want %d elements", said(what), list, want)
	}
}

func said(what []any) string {
	if len(what) == 0 {
		return ""
	}
	for i, part := range what {
		if text, ok := part.([]byte); ok {
			what[i] = string(text)
		}
	}
	return strings.TrimSpace(fmt.Sprintln(what...)) + ": "
}

func shown(value any) string {
	switch value.(type) {
	case string, []string:
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}

// Err is the error of a call that returns a value, too.
func Err[T any](_ T, err error) error { return err }

// Get takes what a call returns: must.Get(os.ReadFile(name))(t) is the value, or the end of the test.
func Get[T any](value T, err error) func(t testing.TB, what ...any) T {
	return func(t testing.TB, what ...any) T {
		t.Helper()
		Do(t, err, what...)
		return value
	}
}

// Output is Get of what a command printed, which the test says if it ends.
func Output[T string | []byte](out T, err error) func(t testing.TB, what ...any) T {
	return func(t testing.TB, what ...any) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s%v\n%s", said(what), err, out)
		}
		return out
	}
}

// Refused fails the test unless a command failed and printed `part`.
func Refused[T string | []byte](out T, err error) func(t testing.TB, part string, what ...any) {
	return func(t testing.TB, part string, what ...any) {
		t.Helper()
		if err == nil || !strings.Contains(string(out), part) {
			t.Errorf("%sgot %v, want a refusal that says %q:\n%s", said(what), err, part, out)
		}
	}
}

// Start starts a command, which is killed at the end of the test.
func Start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// Printed runs a command and returns its standard output, and then its standard error if it failed.
func Printed(cmd *exec.Cmd) (string, error) {
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		out.WriteString(said.String())
	}
	return out.String(), err
}
