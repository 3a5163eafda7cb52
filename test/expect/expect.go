// SPDX-License-Identifier: Apache-2.0

// Package expect has checks after which a test continues. Package must has those that end it. A check prints `what` before the value that it
// rejects.
package expect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// NoError fails the test if err is not nil.
func NoError(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s%v", Prefix(what), err)
	}
}

// True fails the test if a condition does not hold; `what` is the fault.
func True(t testing.TB, holds bool, what ...any) {
	t.Helper()
	if !holds {
		t.Errorf("%s", strings.TrimSuffix(Prefix(what), ": "))
	}
}

// Error fails the test if err is nil.
func Error(t testing.TB, err error, what ...any) {
	t.Helper()
	if err == nil {
		t.Errorf("%sno error", Prefix(what))
	}
}

// ErrorIs fails the test if err is not `want`, as errors.Is compares them.
func ErrorIs(t testing.TB, err, want error, what ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%sgot %v, want %v", Prefix(what), err, want)
	}
}

// ErrorContains fails the test if err is nil, or does not have `part` in its message.
func ErrorContains(t testing.TB, err error, part string, what ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%sgot %v, want an error with %q", Prefix(what), err, part)
	}
}

// ErrorSays is ErrorIs and ErrorContains of one error.
func ErrorSays(t testing.TB, err, want error, part string, what ...any) {
	t.Helper()
	ErrorIs(t, err, want, what...)
	ErrorContains(t, err, part, what...)
}

// Contains fails the test if `text` does not contain `part`.
func Contains(t testing.TB, text, part string, what ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%sthere is no %q in\n%s", Prefix(what), part, text)
	}
}

// Equal fails the test if `got` is not `want`.
func Equal[T comparable](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%sgot %s, want %s", Prefix(what), Text(got), Text(want))
	}
}

// EqualSlices is Equal of slices.
func EqualSlices[T comparable](t testing.TB, got, want []T, what ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%sgot %s, want %s", Prefix(what), Text(got), Text(want))
	}
}

// Refused fails the test if a command succeeded, or did not print `part`.
func Refused[T string | []byte](out T, err error) func(t testing.TB, part string, what ...any) {
	return func(t testing.TB, part string, what ...any) {
		t.Helper()
		if err == nil || !strings.Contains(string(out), part) {
			t.Errorf("%sgot %v, want a refusal with %q:\n%s", Prefix(what), err, part, out)
		}
	}
}

// Prefix returns `what` as a check prints it.
func Prefix(what []any) string {
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

// Text returns a value as a check prints it.
func Text(value any) string {
	switch value.(type) {
	case string, []string:
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}
