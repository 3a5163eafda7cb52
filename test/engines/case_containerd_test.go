//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func isCtr(e engine) string {
	if _, ok := e.(*ctr); ok {
		return ""
	}
	return "it is about containerd, and tried with ctr"
}

func (s *site) ends(id string, init int) {
	s.t.Helper()
	s.Eventually("the slice is gone", s.IsGone(id))
	s.Eventually("the container's init is gone", func() bool { return unix.Kill(init, 0) == unix.ESRCH })
}

// shimsAreKilled: containerd runs our shim program once per killed shim to clean up. Other containers are unaffected.
func shimsAreKilled(s *site) {
	e := s.engine.(*ctr)
	var names []string
	var inits, shims []int
	for range 3 {
		name := s.run(container{})
		s.mustHold(name, gib, quota)
		names, inits = append(names, name), append(inits, s.init(name))
		shims = append(shims, s.parent(inits[len(inits)-1]))
	}
	for _, shim := range shims[:2] {
		s.Must(unix.Kill(shim, unix.SIGKILL))
	}
	for i, name := range names[:2] {
		s.ends(s.id(name), inits[i])
		s.Eventually("containerd has no task", func() bool { return e.status(name) == "" })
		must.Output(e.start(name))(s.t, "start the container again")
		s.works(name)
	}
	expect.Equal(s.t, s.Use(s.id(names[2])).Used, gib, "another container shows")
	s.mustRefuse(names[2], 3*gib, "3 GiB beside 1 GiB in another container")
}

// shimIsKilledAlone: while containerd is down the container of a killed shim keeps running with its quota. A restarted
// containerd ends it.
func shimIsKilledAlone(s *site) {
	name := s.run(container{})
	id, init := s.id(name), s.init(name)
	s.mustHold(name, gib, quota)
	start, said := s.in("fake", "go-"+name), s.in("fake", "later-"+name)
	defer os.Remove(start)
	defer os.Remove(said)
	s.exec(name, "/bin/sh", "-c", fmt.Sprintf(
		"(until [ -e /fake/go-%s ]; do sleep 0.05; done; exec /demo/cuda_hog %d) >/fake/later-%s 2>&1 </dev/null &", name, 3*gib, name))
	s.daemons["containerd"].stop(unix.SIGKILL)
	s.Must(unix.Kill(s.parent(init), unix.SIGKILL))
	s.Must(os.WriteFile(start, nil, 0o644))
	s.Eventually("a process has said what it got", func() bool {
		text, _ := os.ReadFile(said)
		return hog{said: testhost.LastLine(string(text))}.refused()
	})
	if use := s.Use(id); use.Used != gib || use.Refusals == 0 {
		s.t.Errorf("1 GiB is held and 3 GiB were refused; the slice shows %+v", use)
	}
	s.launch(s.daemons["containerd"])
	s.ends(id, init)
	s.remove(name)
	s.works(s.run(container{}))
}

func containerdIsKilledCreating(s *site) {
	done := make(chan struct{})
	var name string
	var err error
	var found bool
	s.WhileStopped(func() {
		go func() {
			defer close(done)
			name, _, err = s.try(container{})
		}()
		found = s.becomesTrue(func() bool { return s.waitingRuntime() != 0 })
		s.daemons["containerd"].stop(unix.SIGKILL)
	})
	<-done
	must.True(s.t, found, "no hook was seen; the engine:", err)
	expect.Error(s.t, err, "containerd was killed and the engine says that the container runs")
	s.launch(s.daemons["containerd"])
	s.remove(name)
	s.Eventually("the slice is gone", s.IsGone(s.id(name)))
	// containerd 1.6 keeps the shim without a container, and so the name. runc's shim behaves alike.
	for _, line := range s.lookProcesses() {
		if strings.Contains(line, " -id "+name+" ") {
			pid, _, _ := strings.Cut(line, " ")
			kill(pid)
			s.Eventually("containerd has cleaned up", func() bool { return len(s.lookBundles()) == 0 })
		}
	}
	s.works(s.run(container{name: name}))
}

type foreground interface {
	foreground(c container, terminal bool) []string // the command, which also removes the ended container
}

func hasForeground(e engine) string {
	if _, ok := e.(foreground); ok {
		return ""
	}
	return "nobody waits for a container there"
}

// attachedRun: `run --rm` shows the output of the processes and returns their status.
func attachedRun(s *site) {
	for _, terminal := range []bool{false, true} {
		c := container{name: fmt.Sprintf("attached%d-%d", names.Add(1), os.Getpid())}
		s.t.Cleanup(func() { _, _ = s.engine.remove(c.name) })
		// The second process exits when it is refused; the first holds memory until the container's init exits. Init sleeps
		// before its exit because clients may lose output written just before the end.
		c.args = []string{"/bin/sh", "-c", fmt.Sprintf(`/demo/cuda_hog %d >/fake/%[2]s & until grep -q holds /fake/%[2]s; do sleep 0.05; done
			cat /fake/%[2]s; rm /fake/%[2]s; /demo/cuda_hog %d; sleep 0.2; exit 7`, gib, c.name, 3*gib)}
		if terminal {
			c.args[2] = "test -t 1 || exit 8; " + c.args[2]
		}
		words, output := s.engine.(foreground).foreground(c.complete(s), terminal), s.output
		if terminal {
			output = s.outputOnTerminal
		}
		out, err := output(words[0], words[1:]...)
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 7 {
			s.t.Errorf("terminal: %v: the status should be 7: %v", terminal, err)
		}
		for _, part := range []string{"holds " + strconv.Itoa(gib) + " of " + strconv.Itoa(quota), "CUDA_ERROR_OUT_OF_MEMORY"} {
			expect.Contains(s.t, out, part, "what the user is shown, with a terminal:", terminal, err)
		}
		s.Eventually("there is no slice", func() bool { return len(s.Slices()) == 0 })
	}
}

// shimOptions: options of a client for runc's shim or ours reach the low-level runtime.
func shimOptions(s *site) {
	e := s.engine.(*ctr)
	real := tool(s.t, e.runtime...)
	root, record, recorder := s.in("another-root"), s.in("recorded"), s.in("recorder")
	defer os.RemoveAll(root)
	// The script removes the option, which fails without systemd.
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >>%s
for word; do shift; [ "$word" = --systemd-cgroup ] || set -- "$@" "$word"; done
exec %s "$@"
`, record, real)
	s.Must(os.WriteFile(recorder, []byte(script), 0o755))
	config := must.Get(os.ReadFile(s.Config()))(s.T)
	edited := strings.Replace(string(config), strconv.Quote(real), strconv.Quote(recorder), 1)
	must.True(s.t, edited != string(config), "the configuration does not name", real)
	s.Must(os.WriteFile(s.Config(), []byte(edited), 0o644))
	defer func() { s.Must(os.WriteFile(s.Config(), config, 0o644)) }()
	options := s.in("options.toml")
	s.Must(os.WriteFile(options, fmt.Appendf(nil, "Root = %q\nSystemdCgroup = true\nNoPivotRoot = true\n", root), 0o644))

	for _, flags := range [][]string{
		{"--runtime", "io.containerd.runc.v2", "--runc-binary", filepath.Join(s.Bin, "gpuslice-runtime"), "--runc-root", root, "--runc-systemd-cgroup"},
		{"--runtime", shimRuntime, "--runtime-config-path", options},
	} {
		s.Must(os.WriteFile(record, nil, 0o644))
		c := container{name: fmt.Sprintf("options%d-%d", names.Add(1), os.Getpid())}
		s.t.Cleanup(func() { _, _ = e.remove(c.name) })
		words := append([]string{"run", "--detach", "--cgroup", "/" + s.containerdNamespace() + "/x.slice:gpuslice:" + c.name}, flags...)
		must.Output(s.ctr(append(words, e.words(c.complete(s))...)...))(s.t, flags)
		s.works(c.name)
		s.remove(c.name)
		text := must.Get(os.ReadFile(record))(s.T)
		for _, verb := range []string{"create", "start", "exec", "delete"} {
			lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
				words := strings.Fields(line)
				// Cleaning up after a shim, runc's shim passes only the root.
				return !slices.Contains(words, verb) || slices.Contains(words, "--force")
			})
			expect.True(s.t, len(lines) > 0, flags, "the low-level runtime was not told to", verb, text)
			for _, line := range lines {
				words := strings.Fields(line)
				at := slices.Index(words, "--root")
				if at < 0 || words[at+1] != filepath.Join(root, s.containerdNamespace()) || !slices.Contains(words, "--systemd-cgroup") {
					s.t.Errorf("%q: the low-level runtime was called with %q", flags, line)
				}
				if verb == "create" && slices.Contains(words, "--no-pivot") != (flags[1] == shimRuntime) {
					s.t.Errorf("%q: --no-pivot is of the second: %q", flags, line)
				}
			}
		}
	}
}

// sameIDElsewhere: each containerd namespace has its own ids, and a slice has its container's id. A second container with the
// same id is rejected; the first is unaffected.
func sameIDElsewhere(s *site) {
	e := s.engine.(*ctr)
	name := s.run(container{})
	s.mustHold(name, gib, quota)
	other := s.containerdNamespace() + "-other"
	elsewhere := func(args ...string) (string, error) {
		return s.output("ctr", append([]string{"--address", s.containerdSocket(), "--namespace", other}, args...)...)
	}
	defer func() {
		_, _ = elsewhere("container", "delete", name)
		_, _ = elsewhere("image", "remove", "--sync", imageRef("busybox"))
		_, err := elsewhere("namespace", "remove", other)
		s.Must(err)
		s.Must(os.RemoveAll(runcRoot(other)))
	}()
	must.Output(elsewhere("image", "import", imageArchive(s.t, "busybox")))(s.t, "import")
	words := e.words(container{name: name, image: "busybox"}.complete(s))
	out, err := elsewhere(append([]string{"run", "--detach", "--cgroup", "/" + s.containerdNamespace() + "/other", "--runtime", shimRuntime}, words...)...)
	expect.Error(s.t, err, "a second container of that id was started")
	s.checkMessage(out, name, "exists", "choose another id")
	expect.Equal(s.t, s.Use(s.id(name)).Used, gib, "the first shows")
	s.mustRefuse(name, 3*gib, "3 GiB beside 1 GiB")
}
