// SPDX-License-Identifier: Apache-2.0

// Package must fails a test at an error that it does not expect.
package must

import (
	"os/exec"
	"strings"
	"testing"
)

// Do ends the test if err is one.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Try fails the test if err is one, and lets it continue.
func Try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Get takes what a call returns: must.Get(os.ReadFile(name))(t) is the value, or the end of the test.
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return value
	}
}

// Output is Get of what a command printed, which the test says if it ends.
func Output[T string | []byte](out T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
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
