//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func quotaIsShared(s *site) {
	name := s.run(container{})
	s.works(name)
	s.remove(name)
	s.Eventually("the slice is gone", s.IsGone(s.id(name)))
}

func restarts(e engine) string {
	if _, ok := e.(restarter); ok {
		return ""
	}
	return "a container there is started once"
}

func restartKeepsTheQuota(s *site) {
	name := s.run(container{})
	id := s.id(name)
	for range 2 {
		s.mustHold(name, 3*gib, quota, "what the container held before its restart is gone")
		must.Output(s.engine.(restarter).restart(name))(s.t, "restart")
		must.Equal(s.t, s.id(name), id, "the id after the restart")
		s.Eventually("nothing is held", s.Holds(id, 0))
	}
	s.works(name)
}

func pauses(e engine) string {
	if _, ok := e.(pauser); ok {
		return ""
	}
	return "it has no pause"
}

func pausedKeeps(s *site) {
	name := s.run(container{})
	s.mustHold(name, 2*gib, quota)
	p := s.engine.(pauser)
	must.Output(p.pause(name))(s.t, "pause")
	other := s.run(container{})
	s.works(other) // a frozen slice blocks no other
	expect.Equal(s.t, s.Use(s.id(name)).Used, 2*gib, "a paused container shows")
	must.Output(p.unpause(name))(s.t, "unpause")
	s.mustRefuse(name, 2*gib, "after the pause a process: 2 GiB are held")
}

func initIsKilled(s *site) {
	name := s.run(container{})
	id := s.id(name)
	s.mustHold(name, gib, quota)
	s.Must(unix.Kill(s.init(name), unix.SIGKILL))
	s.Eventually("the slice is gone", s.IsGone(id))
	s.remove(name)
	s.works(s.run(container{}))
}

func hasShim(e engine) string {
	if _, ok := e.(*oci); ok {
		return "there is none"
	}
	return ""
}

func (s *site) parent(pid int) int {
	s.t.Helper()
	return must.Get(parentOf(strconv.Itoa(pid)))(s.T)
}

func parentOf(pid string) (int, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return strconv.Atoi(fields[1])
}

func shimIsKilled(s *site) { s.killShim(container{}) }

func (s *site) killShim(c container) {
	s.t.Helper()
	name := s.run(c)
	id := s.id(name)
	init := s.init(name)
	shim := s.parent(init)
	must.True(s.t, shim != 1, "nobody's child is the container's init", init)
	s.mustHold(name, gib, quota)
	s.Must(unix.Kill(shim, unix.SIGKILL))
	// The engine then ends the container or leaves it running; the quota holds in both cases.
	if !s.becomesTrue(func() bool { return s.IsGone(id)() || s.Holds(id, gib)() }) {
		s.t.Fatalf("the shim is dead, but the slice shows %+v", s.Slices())
	}
	s.remove(name)
	if err := unix.Kill(init, 0); err == nil {
		_ = unix.Kill(init, unix.SIGKILL) // the engine no longer knows it
	}
	s.Eventually("the slice is gone", s.IsGone(id))
	if e, ok := s.engine.(interface{ deleteForgotten(id string) }); ok {
		e.deleteForgotten(id)
	}
	name = s.run(c)
	s.works(name)
	s.remove(name)
}

func hasDaemon(name string) func(engine) string {
	return func(e engine) string {
		if d, ok := e.(interface{ hasDaemon(string) bool }); ok && d.hasDaemon(name) {
			return ""
		}
		return "it has no " + name
	}
}

func containerdIsKilled(s *site) { s.daemonIsKilled("containerd") }
func dockerdIsKilled(s *site)    { s.daemonIsKilled("dockerd") }
func crioIsKilled(s *site)       { s.daemonIsKilled("crio") }

func (s *site) daemonIsKilled(daemon string) {
	s.t.Helper()
	name := s.run(container{})
	id := s.id(name)
	s.mustHold(name, gib, quota)
	s.crash(daemon)
	s.Eventually("it holds what it held", s.Holds(id, gib))
	s.mustRefuse(name, 3*gib, "3 GiB beside 1 GiB")
	s.killHogs(id)
	s.works(name)
	s.remove(name)
	s.Eventually("the slice is gone", s.IsGone(id))
}

func runtimeIsKilled(s *site) {
	before := lookCgroups(s.Dir)
	done := make(chan struct{})
	var name, out string
	var err error
	var found bool
	s.WhileStopped(func() {
		go func() {
			defer close(done)
			name, out, err = s.try(container{})
		}()
		found = s.becomesTrue(func() bool {
			runtime := s.waitingRuntime()
			return runtime != 0 && unix.Kill(runtime, unix.SIGKILL) == nil
		})
	})
	<-done
	must.True(s.t, found, "no hook was seen; the engine:", err, out)
	expect.Error(s.t, err, "the runtime was killed and the engine says that the container runs")
	s.remove(name)
	// runc 1.1 has not yet written its state when its hooks run, so delete finds nothing then. The container's cgroup stays
	// behind, with gpuslice or without.
	s.becomesTrue(func() bool {
		left := without(lookCgroups(s.Dir), before)
		for _, cgroup := range left {
			_ = os.Remove(cgroup) // fails while processes are left; they end soon
		}
		return len(left) == 0
	})
	s.works(s.run(container{}))
}

// waitingRuntime returns the pid of a runtime with a running hook that has a connection; 0 if there is none. The hook of a pod's sandbox opens no socket.
func (s *site) waitingRuntime() int {
	for _, pid := range children("/proc") {
		line, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err != nil || !strings.HasSuffix(string(line), "\x00prestart\x00") || !hasSocket(pid) {
			continue
		}
		// Apart, the parent identifies the hook: the hook's own first thread may already be in the container.
		parent, err := parentOf(pid)
		if err == nil && (strings.Contains(string(line), s.Config()+"\x00") || s.apart.has(strconv.Itoa(parent))) {
			return parent
		}
	}
	return 0
}

func hasSocket(pid string) bool {
	for _, fd := range children("/proc/" + pid + "/fd") {
		if to, err := os.Readlink("/proc/" + pid + "/fd/" + fd); err == nil && strings.HasPrefix(to, "socket:") {
			return true
		}
	}
	return false
}
