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

// namer is an engine that names its containers: names returns what a slice is shown with, and whether that includes the image.
type namer interface {
	names(name string) (want api.Names, image bool)
}

func hasNames(e engine) string {
	if _, ok := e.(namer); !ok {
		return "its containers have no names but their ids"
	}
	return ""
}

func namesAreShown(s *site) {
	name := s.run(container{})
	is := must.Get(s.Client.Slice(context.Background(), s.id(name)))(s.T)
	want, image := s.engine.(namer).names(name)
	if image == (is.Image == "") || image && !strings.Contains(is.Image, "debian") {
		s.t.Errorf("the image is %q", is.Image)
	}
	is.Image = ""
	expect.Equal(s.t, is.Names, want)
	expect.Contains(s.t, s.must("gpuslice", "--socket", s.Socket(), "inspect", want.Path()), is.ID, "inspect", want.Path())
}
