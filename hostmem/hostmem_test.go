// SPDX-License-Identifier: Apache-2.0

package hostmem

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// TestMain also runs this program as the holder, and as a peer of another user.
func TestMain(m *testing.M) {
	if IsHolder(os.Args) {
		os.Exit(Hold(os.Args))
	}
	if len(os.Args) == 3 && os.Args[1] == "intrude" {
		os.Exit(intrude(os.Args[2]))
	}
	os.Exit(m.Run())
}

const mib = 1 << 20

// place returns a run directory and a cgroup for a test. The holder ends shortly after its last use.
func place(t *testing.T) Options {
	t.Helper()
	needs.Root(t)
	host := must.Get(cgroup.Open("/proc"))(t)
	o := Options{
		RunDir: t.TempDir(), Cgroup: fmt.Sprintf("/gpuslice-test-%d-%d", os.Getpid(), time.Now().UnixNano()), Idle: 200 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	}
	places, err := host.Named(o.Cgroup)
	if err != nil {
		t.Skip(err)
	}
	charged, err := makeCgroup(places[0], true)
	if err != nil {
		_ = os.Remove(places[0].Dir())
		t.Skip(err) // the memory controller is in a v1 hierarchy that is not mounted
	}
	charged.Close()
	t.Cleanup(func() {
		for _, p := range places {
			eventually(t, "the holder has ended, and nothing is charged", func() bool {
				return os.Remove(p.Dir()) == nil || !p.Exists() && errors.Is(syscall.Access(p.Dir(), 0), syscall.ENOENT)
			})
		}
	})
	return o
}

func (o Options) keeper(t *testing.T) *Keeper {
	t.Helper()
	k := must.Get(New(o))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func other(t *testing.T) (p Process, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	must.Do(t, cmd.Start())
	start := must.Get(process.StartTime(cmd.Process.Pid))(t)
	end = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	t.Cleanup(end)
	return Process{cmd.Process.Pid, start}, end
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

func (k *Keeper) mustGrow(t *testing.T, p Process, from, to uint64) *os.File {
	t.Helper()
	file := must.Get(k.Grow(p, 16*Step, from, to))(t)
	t.Cleanup(func() { file.Close() })
	return file
}

// near reports whether n is want, plus at most the holder's own memory.
func near(n, want uint64) bool { return n >= want && n < want+32*mib }

func (k *Keeper) used(t *testing.T) uint64 {
	t.Helper()
	return must.Get(k.Used())(t)
}

func (k *Keeper) has(t *testing.T, p Process) uint64 {
	t.Helper()
	return must.Get(k.Bytes(p))(t)
}

func TestGrantsAreChargedToTheHoldersCgroup(t *testing.T) {
	k := place(t).keeper(t)
	if fresh, err := k.Begin(); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	a, endA := other(t)
	b, endB := other(t)
	file := k.mustGrow(t, a, 0, 2*Step)
	memory := must.Get(unix.Mmap(int(file.Fd()), 0, 2*Step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	for i := range memory {
		must.Equal(t, memory[i], 0, "it is not empty")
		memory[i] = 7
	}
	must.Do(t, unix.Munmap(memory))
	k.mustGrow(t, a, 2*Step, 3*Step)
	otherFile := k.mustGrow(t, b, 0, Step)
	if k.has(t, a) != 3*Step || k.has(t, b) != Step || k.has(t, Process{}) != 4*Step || !near(k.used(t), 4*Step) {
		t.Errorf("%d and %d of %d, %d used", k.has(t, a), k.has(t, b), k.has(t, Process{}), k.used(t))
	}
	// Each process gets its own memfd, of fixed size and seals.
	var one, two unix.Stat_t
	must.Do(t, errors.Join(unix.Fstat(int(file.Fd()), &one), unix.Fstat(int(otherFile.Fd()), &two)))
	if one.Ino == two.Ino || one.Size != 16*Step {
		t.Errorf("%+v %+v", one, two)
	}
	for _, size := range []int64{0, 17 * Step} {
		expect.ErrorIs(t, unix.Ftruncate(int(file.Fd()), size), unix.EPERM, "it is", size, "bytes now")
	}
	expect.ErrorIs(t, must.Err(unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)), unix.EPERM, "it was sealed")
	must.Do(t, k.Trim(a, Step, 16*Step))
	if k.has(t, a) != Step || !near(k.used(t), 2*Step) {
		t.Errorf("%d, %d used", k.has(t, a), k.used(t))
	}
	// Released memory is empty when granted again.
	file = k.mustGrow(t, a, Step, 2*Step)
	end := make([]byte, 1)
	if _, err := file.ReadAt(end, 2*Step-1); err != nil || end[0] != 0 {
		t.Errorf("%v %v", end, err)
	}
	// A process that has ended leaves no memory, even if another one has its descriptor.
	endA()
	eventually(t, "the exited process's memory is released", func() bool { return k.has(t, a) == 0 && near(k.used(t), Step) })
	expect.ErrorIs(t, must.Err(k.Grow(a, 16*Step, 0, Step)), unix.ESRCH, "one that has ended got memory")
	endB()
	eventually(t, "nothing is left", func() bool { return k.has(t, Process{}) == 0 && near(k.used(t), 0) })
}

func TestAnotherProcessOfThatPIDGetsNothing(t *testing.T) {
	k := place(t).keeper(t)
	p, _ := other(t)
	p.Start++
	expect.ErrorIs(t, must.Err(k.Grow(p, Step, 0, Step)), unix.ESRCH)
}

func TestTheNextEnforcerFindsTheHolder(t *testing.T) {
	o := place(t)
	first := o.keeper(t)
	p, _ := other(t)
	first.mustGrow(t, p, 0, Step)
	pid := must.Get(first.PID())(t)
	_ = first.Close()
	time.Sleep(2 * o.Idle) // it is in use
	next := o.keeper(t)
	fresh, err := next.Begin()
	again, _ := next.PID()
	if fresh || err != nil || again != pid || next.has(t, p) != Step {
		t.Errorf("%v %v: %d, it was %d", fresh, err, again, pid)
	}
}

func TestIdleHolderExits(t *testing.T) {
	o := place(t)
	k := o.keeper(t)
	pid := must.Get(k.PID())(t)
	ended := func() bool { return !process.Exists(pid) }
	await.Quiet(t, "it ends while the enforcer is there", 2*o.Idle, ended)
	p, end := other(t)
	k.mustGrow(t, p, 0, Step)
	_ = k.Close()
	await.Quiet(t, "it ends while it holds something", 2*o.Idle, ended)
	end()
	eventually(t, "the holder exits", ended)
}

// Granted memory stays in place, and charged there.
func TestAHolderThatWasKilledIsStartedAnew(t *testing.T) {
	k := place(t).keeper(t)
	p, _ := other(t)
	file := k.mustGrow(t, p, 0, Step)
	memory := must.Get(unix.Mmap(int(file.Fd()), 0, Step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	file.Close()
	copy(memory, "what was written is read")
	pid := must.Get(k.PID())(t)
	must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "the holder is dead", func() bool { return !process.Exists(pid) })
	next, err := k.PID()
	if err != nil || next == pid || k.has(t, p) != 0 || !near(k.used(t), Step) {
		t.Errorf("%v: %d has %d, %d used", err, next, k.has(t, p), k.used(t))
	}
	k.mustGrow(t, p, Step, 2*Step)
	if !near(k.used(t), 2*Step) || !strings.HasPrefix(string(memory), "what was written is read") {
		t.Errorf("%d used", k.used(t))
	}
	must.Do(t, unix.Munmap(memory))
	eventually(t, "the memory is released", func() bool { return near(k.used(t), Step) })
}

// The enforcer checks for room first. If another process takes it concurrently, the kernel may end the holder, unless that could
// exempt itself with CAP_SYS_RESOURCE; it ends nothing else.
func TestACgroupWithoutRoomRefuses(t *testing.T) {
	o := place(t)
	k := o.keeper(t)
	must.Get(k.PID())(t)
	places, err := k.host.Named(o.Cgroup)
	must.Do(t, err)
	limit := map[bool]string{false: "memory.limit_in_bytes", true: "memory.max"}[places[0].V2]
	must.Do(t, os.WriteFile(filepath.Join(places[0].Dir(), limit), []byte(strconv.Itoa(2*Step)), 0))
	p, _ := other(t)
	file := k.mustGrow(t, p, 0, Step)
	_, err = file.WriteAt([]byte("what was written is read"), Step-100)
	must.Do(t, err)
	expect.Error(t, must.Err(k.Grow(p, 16*Step, Step, 4*Step)), "it got more than the cgroup may have")
	_, err = k.PID()
	must.Do(t, err)
	if got := k.has(t, p); got != Step && got != 0 || !near(k.used(t), Step) {
		t.Errorf("%d, %d used", got, k.used(t))
	}
	text := make([]byte, 24)
	if _, err := file.ReadAt(text, Step-100); err != nil || string(text) != "what was written is read" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestFailedCgroupCreationIsReported(t *testing.T) {
	o := place(t)
	good := o.Cgroup
	o.Cgroup = good + "/cgroup.procs"
	k := o.keeper(t)
	for range 2 { // the second time from the cache
		expect.ErrorContains(t, must.Err(k.PID()), o.Cgroup)
	}
	host := must.Get(cgroup.Open("/proc"))(t)
	places, err := host.Named(good) // for the end of the test
	must.Do(t, err)
	for _, p := range places {
		_ = os.MkdirAll(p.Dir(), 0o755)
	}
}

func TestHolderOfAnotherCgroupIsNotAdopted(t *testing.T) {
	o := place(t)
	first := o.keeper(t)
	p, _ := other(t)
	first.mustGrow(t, p, 0, Step)
	was := must.Get(first.PID())(t)
	two := place(t)
	two.RunDir = o.RunDir
	next := two.keeper(t)
	now := must.Get(next.PID())(t)
	if now == was || !process.Exists(was) || !near(next.used(t), 0) || !near(first.used(t), Step) {
		t.Errorf("%d, it was %d", now, was)
	}
}

// intrude runs as another user, with access to the socket.
func intrude(dir string) int {
	if _, _, err := dial(dir); err == nil {
		fmt.Println("the peer is taken for one's own")
		return 1
	}
	c, err := net.Dial("unixpacket", filepath.Join(dir, SocketName))
	if err != nil {
		fmt.Println(err)
		return 2
	}
	if _, err := exchange(c.(*net.UnixConn), request{op: opBytes}); err == nil {
		fmt.Println("it was answered")
		return 1
	}
	return 0
}

func TestTheHolderIgnoresOtherUsers(t *testing.T) {
	o := place(t)
	dir, err := os.MkdirTemp("", "gs-") // accessible to other users
	must.Do(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	o.RunDir = dir
	k := o.keeper(t)
	must.Get(k.PID())(t)
	program := filepath.Join(dir, "program")
	text := must.Get(os.ReadFile("/proc/self/exe"))(t)
	must.Do(t, errors.Join(os.WriteFile(program, text, 0o755), os.Chmod(dir, 0o755)))
	as := func() (string, error) {
		cmd := exec.Command(program, "intrude", dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	expect.Refused(as())(t, "permission denied", "the socket is open to others")
	must.Do(t, os.Chmod(filepath.Join(dir, SocketName), 0o666))
	must.Output(as())(t)
}

func TestAnInvalidMessageEndsTheConnection(t *testing.T) {
	o := place(t)
	k := o.keeper(t)
	pid := must.Get(k.PID())(t)
	for _, message := range [][]byte{{1}, make([]byte, requestSize), make([]byte, 4096), request{op: opGrow, of: Process{1, 1}, size: Step, to: 2 * Step}.encode()} {
		conn, _, err := dial(o.RunDir)
		must.Do(t, err)
		_, err = conn.Write(message)
		must.Do(t, err)
		_ = conn.SetDeadline(time.Now().Add(await.Patience))
		if n, err := conn.Read(make([]byte, 64)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v", n, err)
		}
		conn.Close()
	}
	expect.Equal(t, must.Get(k.PID())(t), pid)
}

func FuzzRequest(f *testing.F) {
	f.Add(request{op: opGrow, of: Process{7, 1 << 40}, size: 3 * Step, from: Step, to: 2 * Step}.encode())
	f.Add(request{op: opTrim, of: Process{7, 9}, to: Step}.encode())
	f.Add(request{op: opBytes}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			return
		}
		expect.Equal(t, string(r.encode()), string(b), r)
		if r.of.PID < 0 || r.of.PID > 1<<22 || r.from > r.to || r.to > maxSize || r.size > maxSize || r.op == opGrow && (r.to > r.size || r.of.PID == 0) {
			t.Errorf("%+v", r)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(reply{failed: unix.ENOMEM, bytes: Step}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeReply(b); err == nil && string(r.encode()) != string(b) {
			t.Errorf("%+v", r)
		}
	})
}

// As on hosts where shmem gives huge pages on madvise only.
func TestMemoryIsTouchedSoThatItIsCharged(t *testing.T) {
	fd := must.Get(newFile(2 * Step))(t)
	defer unix.Close(fd)
	if err := populate(fd, Step, 2*Step); errors.Is(err, unix.EINVAL) {
		t.Skip("requires Linux 5.14")
	} else if err != nil {
		t.Fatal(err)
	}
	f := file{fd: fd}
	expect.Equal(t, f.charged(), Step)
	must.Do(t, punch(fd, 0, 2*Step))
	expect.Equal(t, f.charged(), 0)
}
