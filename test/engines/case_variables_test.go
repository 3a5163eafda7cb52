//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func isOldDocker(e engine) string {
	if d, ok := e.(*docker); ok && !d.old {
		return "Docker 24 and newer pass annotations"
	}
	return isDocker(e)
}

// dockerVariables: an old Docker can use variables in place of annotations, an image cannot, and each error's advice works.
func dockerVariables(s *site) {
	dockerIsFoundOld(s)
	dockerRefusalIsOfUse(s)

	limit := func(want uint64, c container) string {
		s.t.Helper()
		c.annotations = map[string]string{}
		name := s.run(c)
		if use := s.Use(s.id(name)); use.Limit != want {
			s.t.Errorf("%q %q: the slice shows %+v, want a limit of %d", c.env, c.flags, use, want)
		}
		return name
	}
	name := limit(4*gib, container{env: []string{"GPUSLICE_VRAM=4G", "GPUSLICE_TTL=12h"}})
	s.works(name)
	ps := s.must("gpuslice", "--socket", s.Socket(), "ps")
	if !strings.Contains(ps, name) || !strings.Contains(ps, " 4GiB ") || !strings.Contains(ps, "in 11h") && !strings.Contains(ps, "in 12h") {
		s.t.Errorf("gpuslice ps shows\n%s", ps)
	}
	expect.Equal(s.t, must.Get(s.Client.Slice(context.Background(), s.id(name)))(s.t).TTL, 12*time.Hour)
	s.remove(name)
	for _, c := range []container{
		{env: []string{"GPUSLICE_VRAM_0=2G", "GPUSLICE_VRAM=4G"}},
		{env: []string{"GPUSLICE_VRAM=2G"}, flags: []string{"--label", "gpuslice.vram=1G"}}, // dockerd does not pass labels on
	} {
		s.remove(limit(2*gib, c))
	}
	s.remove(limit(70*gib, container{flags: []string{"--label", "gpuslice.vram=1G"}}))
	for variable, told := range map[string]string{
		"GPUSLICE_MODE=record": "an image can set a variable", "GPUSLICE_POOL=llm": "an image can set a variable", "GPUSLICE_TTL=soon": `"30m"`,
	} {
		name, out, err := s.try(container{annotations: map[string]string{}, env: []string{variable}})
		expect.Error(s.t, err, variable, "was accepted")
		s.checkMessage(out, "variable "+strings.SplitN(variable, "=", 2)[0], told)
		s.remove(name)
	}

	images := s.run(container{})
	defer s.remove(images)
	image := func(env string) container {
		s.t.Helper()
		s.docker("commit", "--change", "ENV "+env, images, imageRef("variables"))
		return container{image: "variables", annotations: map[string]string{}}
	}
	defer s.docker("rmi", "--force", imageRef("variables"))
	s.remove(limit(2*gib, image("GPUSLICE_VRAM=2G")))
	lower := image("GPUSLICE_VRAM=2G")
	lower.env = []string{"GPUSLICE_VRAM=4G"}
	s.remove(limit(4*gib, lower))
	for _, env := range []string{"GPUSLICE_VRAM=71G", "GPUSLICE_POOL=llm", "GPUSLICE_MODE=record", "GPUSLICE_TENANT=rich", "GPUSLICE_ELASTIC=true"} {
		name, out, err := s.try(image(env))
		if err == nil {
			s.t.Errorf("an image with %s was accepted: %+v", env, s.Use(s.id(name)))
		}
		s.checkMessage(out, "is not accepted")
		s.remove(name)
	}
}

// dockerIsFoundOld: the first documented flag fails here, and `gpuslice install` names the one that works.
func dockerIsFoundOld(s *site) {
	e := s.engine.(*docker)
	expect.Refused(e.invoke("run", "--annotation", "gpuslice.vram=4G", imageRef("debian"), "true"))(s.t, "unknown flag: --annotation")
	out := s.must("gpuslice", "install", "docker", "--dry-run", "--config", s.in("none.json"))
	for _, want := range []string{"docker: warning: Docker 20.10", "has no --annotation", "-e GPUSLICE_VRAM=4G", "allow_env = true"} {
		expect.Contains(s.t, out, want)
	}
}

// dockerRefusalIsOfUse: without allow_env the error names a fix, which the test then applies.
func dockerRefusalIsOfUse(s *site) {
	allowed := must.Get(os.ReadFile(s.Config()))(s.T)
	defer func() { s.Must(os.WriteFile(s.Config(), allowed, 0o644)) }()
	var kept []string
	for line := range strings.Lines(string(allowed)) {
		if !strings.HasPrefix(line, "default_vram") && !strings.HasPrefix(line, "allow_env") {
			kept = append(kept, line)
		}
	}
	s.Must(os.WriteFile(s.Config(), []byte(strings.Join(kept, "")), 0o644))
	for _, env := range [][]string{nil, {"GPUSLICE_VRAM=4G"}} {
		name, out, err := s.try(container{annotations: map[string]string{}, env: env})
		expect.Error(s.t, err, "a container without a quota was started")
		s.checkMessage(out, "no quota", "older than 24", "default_vram", "allow_env = true", "-e GPUSLICE_VRAM=4G")
		if strings.Contains(out, "--annotation") || strings.Contains(out, "gpuslice.vram") {
			s.t.Errorf("it advises an annotation: %s", out)
		}
		s.remove(name)
	}
}
