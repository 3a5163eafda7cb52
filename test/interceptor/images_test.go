// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Names in compressed form are charged when a program asks for them, and wrong names cost nothing, since the driver does not know them.
func TestManagedVariablesAreFoundInEachFormOfAnImage(t *testing.T) {
	program := compileTo(t, filepath.Join(t.TempDir(), "images"), "programs/images.c", "../../interceptor/image.c")
	out := must.Output(exec.Command(program).Output())(t)
	text, cubin := " big first second", " one two"
	var want strings.Builder
	for _, form := range []struct{ name, names string }{{"text", text}, {"cubin", cubin}, {"fatbin", cubin + text}} {
		for _, how := range []string{"", " of unknown size", " wrapped"} {
			want.WriteString(form.name + how + ":" + form.names + "\n")
		}
		want.WriteString(form.name + " wrapped in a file:\n")
	}
	expect.Equal(t, string(out), want.String())
}
