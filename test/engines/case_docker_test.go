//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func isDocker(e engine) string {
	if _, ok := e.(*docker); ok {
		return ""
	}
	return "it is Docker's own"
}

func (s *site) docker(args ...string) string {
	s.t.Helper()
	out, err := s.engine.(*docker).invoke(args...)
	must.Do(s.t, err, "docker", args, out)
	return strings.TrimSpace(out)
}

func hasShims(e engine) string {
	if d, ok := e.(*docker); ok && d.old {
		return "Docker 20.10 has no runtimes but programs"
	}
	return isDocker(e)
}

func dockerByShim(s *site) {
	for _, runtime := range []string{shimRuntime, dockerShim} {
		flags := []string{"--runtime", runtime}
		name, out, err := s.try(container{flags: flags, annotations: vram("4X")})
		expect.Error(s.t, err, "4X was accepted")
		s.checkMessage(out, `"4X"`, `"4G"`)
		s.remove(name)
		name = s.run(container{flags: flags})
		s.works(name)
		s.remove(name)
	}
	s.killShim(container{flags: []string{"--runtime", dockerShim}})
}

func dockerStops(s *site) {
	for _, c := range []struct{ init, patience, status string }{
		{"trap 'exit 7' TERM; sleep 600 & wait", "60", "7"},
		{"trap '' TERM; while :; do sleep 1; done", "1", "137"},
	} {
		name := s.run(container{args: []string{"/bin/sh", "-c", c.init}})
		id := s.id(name)
		s.mustHold(name, 3*gib, quota)
		s.docker("stop", "-t", c.patience, name)
		expect.Equal(s.t, s.docker("inspect", "--format", "{{.State.ExitCode}}", name), c.status, "it ended with")
		s.Eventually("the slice is gone", s.IsGone(id))
		s.docker("start", name)
		s.Eventually("nothing is held", s.Holds(id, 0))
		s.remove(name)
	}
}

// dockerUpdates: `docker update` keeps the quota, also across a restart.
func dockerUpdates(s *site) {
	name := s.run(container{})
	s.mustHold(name, gib, quota)
	s.docker("update", "--memory", "1g", "--memory-swap", "1g", name)
	s.mustRefuse(name, 3*gib, "3 GiB beside 1 GiB")
	s.killHogs(s.id(name))
	s.docker("restart", "-t", "0", name)
	s.works(name)
}

func dockerInit(s *site) {
	name := s.run(container{flags: []string{"--init"}})
	expect.Contains(s.t, s.exec(name, "cat", "/proc/1/comm"), "init", "its first process")
	s.works(name)
}

// dockerNamespaces: sharing namespaces with another container does not share its quota.
func dockerNamespaces(s *site) {
	one := s.run(container{flags: []string{"--ipc", "shareable"}})
	two := s.run(container{flags: []string{"--pid", "container:" + one, "--ipc", "container:" + one}})
	must.Equal(s.t, s.exec(one, "readlink", "/proc/self/ns/pid"), s.exec(two, "readlink", "/proc/self/ns/pid"), "they have not one pid namespace")
	s.mustHold(two, 3*gib, quota)
	s.works(one)
	s.mustRefuse(two, 3*gib, "3 GiB beside 3 GiB")
	s.mustHold(one, gib, quota)
	s.remove(two)
	s.Eventually("the slice is gone", s.IsGone(s.id(two)))
	s.Eventually("the other's is not", s.Holds(s.id(one), gib))
	s.remove(one)
	for _, mode := range []string{"host", "private"} {
		name := s.run(container{flags: []string{"--cgroupns", mode}})
		s.works(name)
		s.remove(name)
	}
}

// dockerCommits: a container's layer holds mount points but no content of ours. Its committed image works with gpuslice and
// without.
func dockerCommits(s *site) {
	name := s.run(container{})
	s.exec(name, "/bin/sh", "-c", "echo works >/etc/mine")
	for line := range strings.Lines(s.docker("diff", name)) {
		switch change := strings.TrimSpace(line); change {
		case "C /etc", "A /etc/mine", "A /etc/ld.so.preload", "A /.gpuslice",
			"A /demo", "A /fakecuda", "A /fake": // the mount points of the suite
		default:
			s.t.Errorf("the layer has %q", change)
		}
	}
	s.docker("commit", name, imageRef("committed"))
	defer s.docker("rmi", "--force", imageRef("committed"))
	// The files of a running container are gone when it has ended.
	s.docker("stop", "-t", "0", name)
	if diff := s.docker("diff", name); strings.Contains(diff, "gpuslice") || strings.Contains(diff, "preload") {
		s.t.Errorf("after its end the layer has\n%s", diff)
	}
	s.remove(name)

	plain := s.run(container{image: "committed", flags: []string{"--runtime", "runc"}})
	if out := s.exec(plain, "/bin/sh", "-c", "cat /etc/mine; cat /etc/ld.so.preload; ls -A /.gpuslice"); out != "works\n" {
		s.t.Errorf("without gpuslice a container of the image says %q", out)
	}
	s.remove(plain)
	again := s.run(container{image: "committed"})
	expect.Equal(s.t, s.exec(again, "cat", "/etc/mine"), "works\n", "a container of the image says")
	s.works(again)
	s.remove(again)
}

func dockerCopies(s *site) {
	name := s.run(container{})
	file, back := s.in("copied"), s.in("copied-back")
	defer os.Remove(file)
	defer os.RemoveAll(back)
	s.Must(os.WriteFile(file, []byte("works\n"), 0o644))
	s.docker("cp", file, name+":/etc/mine")
	expect.Equal(s.t, s.exec(name, "cat", "/etc/mine"), "works\n", "the container sees")
	s.docker("cp", name+":/etc", back)
	expect.Equal(s.t, string(must.Get(os.ReadFile(s.in("copied-back", "mine")))(s.t)), "works\n", "copied from the container")
	s.works(name)
}

// dockerHealth: the daemon starts the health check, and its process counts against the slice.
func dockerHealth(s *site) {
	name := s.run(container{flags: []string{
		"--health-interval", "200ms", "--health-retries", "1000",
		"--health-cmd", "/demo/cuda_hog 5368709120 2>&1 | grep CUDA_ERROR_OUT_OF_MEMORY", // 5 GiB
	}})
	s.Eventually("the check is refused more than the quota", func() bool {
		return s.docker("inspect", "--format", "{{.State.Health.Status}}", name) == "healthy"
	})
	if use := s.Use(s.id(name)); use.Refusals == 0 || use.Used != 0 {
		s.t.Errorf("the slice shows %+v", use)
	}
}

func dockerRestarts(s *site) {
	name := s.run(container{flags: []string{"--restart", "always"}})
	id := s.id(name)
	first := must.Get(s.Client.Slice(context.Background(), id))(s.T)
	s.mustHold(name, 3*gib, quota)
	s.Must(unix.Kill(first.PID, unix.SIGKILL))
	s.Eventually("there is a new generation", func() bool {
		slice, err := s.Client.Slice(context.Background(), id)
		return err == nil && slice.Generation > first.Generation && slice.PID != first.PID
	})
	s.Eventually("it runs", func() bool { return s.docker("inspect", "--format", "{{.State.Running}}", name) == "true" })
	s.works(name)
}

func dockerByDefault(s *site) {
	e := s.engine.(*docker)
	e.runtime = ""
	defer func() { e.runtime = dockerRuntime }()
	s.works(s.run(container{}))
	name, out, err := s.try(container{annotations: map[string]string{}})
	if e.old {
		s.Must(err)
		expect.Equal(s.t, s.Use(s.id(name)).Limit, 70*gib, "the slice shows")
		return
	}
	expect.Error(s.t, err, "a container without a quota was started")
	s.checkMessage(out, "no quota", "gpuslice.vram=4G")
}
