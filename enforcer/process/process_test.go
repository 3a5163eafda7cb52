// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// sleeper starts a process that ends with the test, or by `end`.
func sleeper(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	must.Do(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func mustOpen(t testing.TB, pid int) *Handle {
	t.Helper()
	h := must.Get(Open(pid))(t)
	t.Cleanup(func() { h.Close() })
	return h
}

func TestIdentityHasTheProcessesOwnPID(t *testing.T) {
	h := mustOpen(t, os.Getpid())
	ns := must.Get(os.Stat("/proc/self/ns/pid"))(t)
	if h.PID != os.Getpid() || h.NSPID != os.Getpid() || h.PIDNS != ns.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("got %+v", h.Identity)
	}
	start, err := StartTime(os.Getpid())
	if err != nil || start != h.Start || start == 0 {
		t.Errorf("start time %d (%v), in the handle %d", start, err, h.Start)
	}
}

func TestNSPIDIsThePIDInTheInnermostNamespace(t *testing.T) {
	needs.Root(t)
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	must.Do(t, cmd.Start())
	defer end(cmd)
	h := mustOpen(t, cmd.Process.Pid)
	self := mustOpen(t, os.Getpid())
	if h.NSPID != 1 || h.PID != cmd.Process.Pid || h.PIDNS == self.PIDNS {
		t.Errorf("got %+v; the test itself is in namespace %d", h.Identity, self.PIDNS)
	}
}

func TestExitedProcessIsNotAlive(t *testing.T) {
	cmd := sleeper(t)
	h := mustOpen(t, cmd.Process.Pid)
	expect.True(t, h.Alive(), "a living process is not alive")
	_ = cmd.Process.Kill()
	waitFor(t, func() bool { return !h.Alive() }) // still a zombie, since it was not waited for
	expect.ErrorIs(t, must.Err(Open(cmd.Process.Pid)), ErrDead, "open a zombie")
	_ = cmd.Wait()
	expect.ErrorIs(t, h.Signal(syscall.SIGTERM), ErrDead, "signal")
	expect.ErrorIs(t, must.Err(Open(cmd.Process.Pid)), ErrDead, "open")
	expect.ErrorIs(t, must.Err(StartTime(cmd.Process.Pid)), ErrDead, "start time")
}

func TestAProcessIsFoundAgainByItsStartTime(t *testing.T) {
	cmd := sleeper(t)
	first := mustOpen(t, cmd.Process.Pid)
	again, err := Again(first.PID, first.Start)
	if err != nil || again.Identity != first.Identity || !again.Alive() {
		t.Fatalf("%+v, %v", again, err)
	}
	defer again.Close()
	expect.True(t, Exists(first.PID), "it does not exist")
	expect.ErrorIs(t, must.Err(Again(first.PID, first.Start+1)), ErrDead, "a process of the same pid with another start time")
	must.Do(t, cmd.Process.Kill())
	waitFor(t, func() bool { return !first.Alive() })
	if _, err := Again(first.PID, first.Start); !errors.Is(err, ErrDead) { // still a zombie
		t.Errorf("a dead one: %v", err)
	}
	expect.True(t, !Exists(first.PID), "a dead one exists")
}

func TestSignalReachesTheProcess(t *testing.T) {
	cmd := sleeper(t)
	h := mustOpen(t, cmd.Process.Pid)
	must.Do(t, h.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	expect.Equal(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), syscall.SIGTERM, "it died of")
}

func TestAClosedHandleSignalsNoProcess(t *testing.T) {
	h := mustOpen(t, sleeper(t).Process.Pid)
	expect.NoError(t, errors.Join(h.Close(), h.Close()))
	expect.ErrorIs(t, h.Signal(syscall.SIGTERM), os.ErrClosed, "signal")
	expect.True(t, !h.Alive(), "alive, though closed")
}

func TestFromPidfdRejectsAWrongPID(t *testing.T) {
	one, other := sleeper(t), sleeper(t)
	pidfd := func() int {
		return must.Get(unix.PidfdOpen(one.Process.Pid, 0))(t)
	}
	for _, pid := range []int{one.Process.Pid, 0} {
		h := must.Get(FromPidfd(pidfd(), pid))(t)
		expect.Equal(t, h.PID, one.Process.Pid, "pid", pid, "the handle is of")
		h.Close()
	}
	expect.Error(t, must.Err(FromPidfd(pidfd(), other.Process.Pid)), "another process's pid was believed")
	end(one)
	fd := must.Get(unix.PidfdOpen(other.Process.Pid, 0))(t)
	end(other)
	expect.ErrorIs(t, must.Err(FromPidfd(fd, other.Process.Pid)), ErrDead, "a dead process's pidfd")
}

func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	await.That(t, "the event", f)
}

func TestAncestor(t *testing.T) {
	// A shell in a shell starts sleep. The output shows that it has started.
	cmd := exec.Command("sh", "-c", `sh -c 'sleep 600 & echo $!; wait'; :`)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	var grandchild int
	must.Get(fmt.Fscan(out, &grandchild))(t)
	defer end(cmd)
	defer syscall.Kill(grandchild, syscall.SIGKILL)
	for _, c := range []struct {
		pid, ancestor int
		want          bool
	}{
		{grandchild, grandchild, true},
		{grandchild, cmd.Process.Pid, true},
		{grandchild, os.Getpid(), true},
		{cmd.Process.Pid, grandchild, false},
		{os.Getpid(), cmd.Process.Pid, false},
		{1 << 30, os.Getpid(), false},
		{1 << 30, 1 << 30, false},
	} {
		expect.Equal(t, Ancestor(c.pid, c.ancestor), c.want, c.pid, c.ancestor)
	}
}

func TestBootIDIsOneWord(t *testing.T) {
	id, err := BootID()
	if err != nil || len(id) != 36 || strings.ContainsAny(id, " \n") {
		t.Errorf("got %q, %v", id, err)
	}
}

// A cached identity belongs to a pidfd, not to a pid.
func TestCachedIdentityIsNotReusedForAnotherProcess(t *testing.T) {
	if !pidfdInodesAreUnique() {
		t.Skip("requires Linux 6.9, where each process's pidfds have an inode of their own")
	}
	for range 8 {
		cmd := exec.Command("sleep", "60")
		must.Do(t, cmd.Start())
		want := must.Get(identify(cmd.Process.Pid))(t)
		for range 3 {
			h := must.Get(Open(cmd.Process.Pid))(t)
			must.Equal(t, h.Identity, want, "identity")
			h.Close()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if h, err := Open(cmd.Process.Pid); err == nil && h.Identity == want {
			t.Errorf("got a handle on an exited process: %+v", h.Identity)
		}
	}
	h := must.Get(Open(os.Getpid()))(t)
	defer h.Close()
	var cache identities
	for range 3 * cacheCapacity {
		cache.keep(h.fd, h.Identity)
		cache.mu.Lock()
		cache.byInode[uint64(len(cache.byInode))<<40] = Identity{} // by an inode that no pidfd here has
		n := len(cache.byInode)
		cache.mu.Unlock()
		must.True(t, n <= cacheCapacity+1, n, "identities are cached")
	}
}

func TestNameStripsControlCharacters(t *testing.T) {
	const comm = "/proc/self/comm"
	was := must.Get(os.ReadFile(comm))(t)
	defer func() { _ = os.WriteFile(comm, was, 0) }()
	must.Do(t, os.WriteFile(comm, []byte("a\x1b[2J\xffé\nb"), 0))
	expect.Equal(t, Name(os.Getpid()), "a[2Jéb")
}

const tail = " S 42 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11"

func TestAProgramsNameCannotForgeItsStatus(t *testing.T) {
	for _, name := range []string{"sleep", "a b", "a) R 1 (b", ") S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "\n", ")", "("} {
		s, err := parseStat([]byte("7 (" + name + ")" + tail))
		if err != nil || s.ppid != 42 || s.start != 987654 {
			t.Errorf("name %q: got %+v, %v", name, s, err)
		}
	}
}

func TestMalformedStatIsAnError(t *testing.T) {
	for _, s := range []string{"", "7", "7 (a", "7 (a)", "7 (a) S 1 2 3", "7 (a) S x 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654"} {
		if got, err := parseStat([]byte(s)); err == nil {
			t.Errorf("%q: got %+v", s, got)
		}
	}
	for _, s := range []string{"", "NSpid:\n", "NSpid:\tx\n", "Name:\tNSpid: 7\n"} {
		if got, _, err := parseNSPID([]byte(s)); err == nil {
			t.Errorf("%q: got %d", s, got)
		}
	}
}

func TestTheInnermostNamespaceCounts(t *testing.T) {
	for s, want := range map[string]struct {
		pid    int
		nested bool
	}{
		"Name:\tx\nNSpid:\t4711\nFoo:\t1\n":      {4711, false},
		"Name:\tx\nNSpid:\t4711\t23\t1\nNSid:\n": {1, true},
	} {
		if pid, nested, err := parseNSPID([]byte(s)); err != nil || pid != want.pid || nested != want.nested {
			t.Errorf("%q: got %d, %v, %v, want %v", s, pid, nested, err, want)
		}
	}
}

// The real, effective, saved and filesystem ids; those of a setuid program differ.
func TestOwnedByRequiresAllFourUIDs(t *testing.T) {
	for s, want := range map[string]bool{
		"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\n": true,
		"Uid:\t0\t7\t7\t7\n":                             false,
		"Uid:\t7\t0\t7\t7\n":                             false,
		"Uid:\t7\t7\t0\t7\n":                             false,
		"Uid:\t7\t7\t7\t0\n":                             false,
		"Uid:\t7\t7\t7\n":                                false,
		"Uid:\t77\t77\t77\t77\n":                         false,
		"Gid:\t7\t7\t7\t7\n":                             false,
		"":                                               false,
	} {
		expect.Equal(t, ownedBy([]byte(s), 7), want, s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("7 (a)" + tail))
	f.Add([]byte("NSpid:\t1\t2\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseStat(b)
		_, _, _ = parseNSPID(b)
	})
}
