// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The client is in the module of all of gpuslice. A program that imports it gets these modules alone, as with a module of its own.
func TestTheClientBringsFewModules(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("requires go")
	}
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "github.com/gpuslice/gpuslice/lease")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	want := []string{
		"github.com/gpuslice/gpuslice", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text", "google.golang.org/genproto/googleapis/rpc",
		"google.golang.org/grpc", "google.golang.org/protobuf",
	}
	if modules = slices.Compact(modules); !slices.Equal(modules, want) {
		t.Errorf("a program that imports the client gets %v", modules)
	}
}
