//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// namer is an engine that names containers. names returns the names that gpuslice shows for a container, and whether it shows the image, too.
type namer interface {
	names(name string) (want api.Names, image bool)
}

// skipWithoutNames returns the reason to skip a case of names; "" if the engine has names.
func skipWithoutNames(e engine) string {
	if _, ok := e.(namer); !ok {
		return "its containers have no names but their ids"
	}
	return ""
}

func namesAreShown(s *site) {
	name := s.run(container{})
	got := must.Get(s.Client.Slice(context.Background(), s.id(name)))(s.T)
	want, image := s.engine.(namer).names(name)
	if image == (got.Image == "") || image && !strings.Contains(got.Image, "debian") {
		s.t.Errorf("the image is %q", got.Image)
	}
	got.Image = ""
	expect.Equal(s.t, got.Names, want)
	expect.Contains(s.t, s.must("gpuslice", "--socket", s.Socket(), "inspect", want.Path()), got.ID, "inspect", want.Path())
}
