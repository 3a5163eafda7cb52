//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

type hog struct {
	said string // its only line of output
	pid  int    // as the container sees it
}

func (g hog) holds(bytes, total uint64) bool {
	return g.said == fmt.Sprintf("holds %d of %d", bytes, total)
}

func (g hog) refused() bool { return strings.HasSuffix(g.said, ": CUDA_ERROR_OUT_OF_MEMORY") }

// mustHold starts a process that allocates bytes. It must succeed, and see a card with total bytes of memory.
func (s *site) mustHold(name string, bytes, total uint64, what ...any) {
	s.t.Helper()
	must.Equal(s.t, s.hog(name, bytes).said, fmt.Sprintf("holds %d of %d", bytes, total), what...)
}

// mustRefuse starts a process that allocates bytes. It must get CUDA_ERROR_OUT_OF_MEMORY.
func (s *site) mustRefuse(name string, bytes uint64, what ...any) {
	s.t.Helper()
	g := s.hog(name, bytes)
	must.True(s.t, g.refused(), append(what, "said", g.said)...)
}

// hog starts a process that allocates memory and keeps it, by the engine's exec.
func (s *site) hog(name string, bytes uint64) hog {
	s.t.Helper()
	return s.startHog(name, "/demo/cuda_hog "+strconv.FormatUint(bytes, 10))
}

// startHog runs a command in the container by the engine's exec, and returns its first output and its pid. The command's output goes to a file in
// /fake, which host and container share.
func (s *site) startHog(name, command string) hog {
	s.t.Helper()
	said := fmt.Sprintf("said-%s-%d", name, names.Add(1))
	pid := strings.TrimSpace(s.exec(name, "/bin/sh", "-c",
		command+" >/fake/"+said+" 2>&1 </dev/null & echo $!"))
	var g hog
	var err error
	if g.pid, err = strconv.Atoi(pid); err != nil {
		s.t.Fatalf("exec in %s said %q, want a pid", name, pid)
	}
	file := s.in("fake", said)
	defer os.Remove(file)
	s.Eventually("the process has printed its result", func() bool {
		text, err := os.ReadFile(file)
		g.said = testhost.LastLine(string(text))
		return err == nil && g.said != ""
	})
	return g
}

func (s *site) killHogs(id string) {
	s.t.Helper()
	slice := must.Get(s.Client.Slice(context.Background(), id))(s.T)
	must.True(s.t, len(slice.Processes) > 0, "slice", id, "has no process to kill:", slice)
	for _, p := range slice.Processes {
		if err := unix.Kill(p.PID, unix.SIGKILL); err != unix.ESRCH { // a refused process may just have ended
			s.Must(err)
		}
	}
	// Contexts too: a refused process's context counts until the process ends.
	s.Eventually("the slice uses no memory", func() bool {
		use := s.Use(id)
		return use.Used+use.Overhead == 0
	})
}

// works is the core of every case: two processes share one quota, a third is refused, and a process's exit returns its memory.
func (s *site) works(name string) {
	s.t.Helper()
	id := s.id(name)
	s.mustHold(name, gib, quota, "the first process: it should hold 1 GiB of a card of the quota's size")
	s.mustHold(name, gib, quota, "the second process")
	s.mustRefuse(name, 2*gib, "the third process: 2 GiB do not fit beside 2 GiB and contexts")
	use := s.Use(id)
	if use.Used != 2*gib || use.Limit != quota || use.Used+use.Overhead > quota || use.Refusals == 0 {
		s.t.Fatalf("two processes hold 1 GiB each and one was refused; the slice shows %+v", use)
	}
	s.killHogs(id)
	s.mustHold(name, 3*gib, quota, "a process started after the others were killed: there is room for 3 GiB")
	s.killHogs(id)
}
