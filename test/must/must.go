// SPDX-License-Identifier: Apache-2.0

// Package must ends a test at an error, or at a value that is not what it should be. After the checks of package expect a test continues.
package must

import (
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

// Do ends the test if err is not nil. It prints `what` before the error, as all checks do.
func Do(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s%v", expect.Prefix(what), err)
	}
}

// True ends the test if a condition does not hold; `what` says what is wrong.
func True(t testing.TB, holds bool, what ...any) {
	t.Helper()
	if !holds {
		t.Fatal(strings.TrimSuffix(expect.Prefix(what), ": "))
	}
}

// Equal ends the test if `got` is not `want`.
func Equal[T comparable](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%sgot %s, want %s", expect.Prefix(what), expect.Text(got), expect.Text(want))
	}
}

// Len ends the test if a list or a map does not have `want` elements.
func Len(t testing.TB, list any, want int, what ...any) {
	t.Helper()
	if reflect.ValueOf(list).Len() != want {
		t.Fatalf("%sgot %+v, want %d elements", expect.Prefix(what), list, want)
	}
}

// Err returns the error of a call that also returns a value.
func Err[T any](_ T, err error) error { return err }

// Get returns a call's value or ends the test: must.Get(os.ReadFile(name))(t).
func Get[T any](value T, err error) func(t testing.TB, what ...any) T {
	return func(t testing.TB, what ...any) T {
		t.Helper()
		Do(t, err, what...)
		return value
	}
}

// Output is Get for a command's output, which it prints if it ends the test.
func Output[T string | []byte](out T, err error) func(t testing.TB, what ...any) T {
	return func(t testing.TB, what ...any) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s%v\n%s", expect.Prefix(what), err, out)
		}
		return out
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

// Printed returns a command's standard output, with its standard error if it failed.
func Printed(cmd *exec.Cmd) (string, error) {
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		out.WriteString(said.String())
	}
	return out.String(), err
}
