// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func create(t *testing.T) *Ledger {
	t.Helper()
	l := must.Get(Create([16]byte{1, 2, 3}))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func file(t *testing.T, l *Ledger) *os.File {
	t.Helper()
	memfd := must.Get(l.File())(t)
	t.Cleanup(func() { memfd.Close() })
	return memfd
}

var someDevice = Device{UUID: [16]byte{9}, Limit: 1000, Quota: 1000, Total: 5000}

// withDevice sets device 0, and returns lane 0's account on it.
func withDevice(t *testing.T, l *Ledger) *Account {
	t.Helper()
	a := must.Get(l.OpenAccount(0, 0))(t)
	must.Do(t, a.SetDevice(someDevice, 10))
	return a
}

func give(t *testing.T, l *Ledger, lane uint32) *Account {
	t.Helper()
	must.Do(t, l.Assign(lane, Owner{PID: 42, Start: 7, NSPID: 2, PIDNS: 3}))
	l.SetLive(lane)
	return must.Get(l.OpenAccount(0, lane))(t)
}

func TestTheLedgerCannotShrinkOrGrow(t *testing.T) {
	l := create(t)
	memfd := file(t, l)
	for _, size := range []int64{0, int64(Size) - 1, int64(Size) + 1} {
		expect.ErrorIs(t, memfd.Truncate(size), unix.EPERM, "truncate to", size)
	}
	must.Do(t, l.Check(false, false, nil))
}

// descriptors returns the number of this process's descriptors of the ledger's memfd.
func descriptors(t *testing.T, l *Ledger) (count int) {
	t.Helper()
	for _, entry := range must.Get(os.ReadDir("/proc/self/fd"))(t) {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+entry.Name(), &st) == nil && st.Dev == l.id.Dev && st.Ino == l.id.Inode {
			count++
		}
	}
	return count
}

// handedOut checks that a descriptor of the ledger works as a process expects.
func handedOut(t *testing.T, l *Ledger) {
	t.Helper()
	again := must.Get(Open(file(t, l), l.Identity()))(t) // the same file, sealed
	defer again.Close()
	l.SetClosed()
	expect.NoError(t, again.Check(false, true, nil), "a write here is missing there")
	again.SetRecord()
	expect.NoError(t, l.Check(true, true, nil), "a write there is missing here")
}

func TestLedgerIsPassedOnlyByItsMapping(t *testing.T) {
	needs.Root(t)
	l := create(t)
	must.True(t, l.file == nil, "the ledger keeps its descriptor: /proc/self/map_files cannot be read")
	neighbour := create(t) // the kernel maps it next to l, without joining the two
	handedOut(t, l)
	handedOut(t, neighbour)
	expect.Equal(t, descriptors(t, l)+descriptors(t, neighbour), 0, "descriptors of two ledgers")
}

func TestALedgerKeepsItsFileWithoutTheRightToItsMapping(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread without capabilities ends with the test
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	must.Do(t, unix.Capset(&header, &none[0]))
	l := create(t)
	must.Equal(t, descriptors(t, l), 1, "descriptors")
	handedOut(t, l)
}

func TestARefusalIsReadUntilItIsReported(t *testing.T) {
	l := create(t)
	give(t, l, 1)
	if r, ok := l.LastRefusal(1); ok {
		t.Fatal("there is one before the first", r)
	}
	lane := &l.page.lane[1]
	lane.described++
	lane.refusal.bytes, lane.refusal.used, lane.refusal.overhead, lane.refusal.needed = 5, 4, 3, 9
	lane.refusal.device, lane.refusal.call, lane.refusal.by_pool = 2, 1, 1
	if r, ok := l.LastRefusal(1); ok {
		t.Error("half of one is read", r)
	}
	lane.described++
	want := Refusal{Device: 2, Bytes: 5, Used: 4, Overhead: 3, Needed: 9, Call: "cuMemAlloc", ByPool: true, number: 2}
	for range 2 {
		r, ok := l.LastRefusal(1)
		expect.True(t, ok, "it is lost")
		expect.Equal(t, r, want)
	}
	l.Reported(1, want)
	if r, ok := l.LastRefusal(1); ok {
		t.Error("one that was reported is read", r)
	}
	lane.refusal.call = 77
	lane.described += 2
	if r, _ := l.LastRefusal(1); r.Call != "memory" {
		t.Error("an unknown call is read as", r.Call)
	}
}

func TestADeadLaneIsSettledOnceAndGivenToTheNext(t *testing.T) {
	l := create(t)
	enforcer := withDevice(t, l)
	a := give(t, l, 1)
	must.Do(t, a.Charge(600))
	expect.ErrorIs(t, a.Charge(401), ErrRefused, "over the limit")
	must.Do(t, enforcer.Set(300))
	l.page.lane[1].entry[0].context = 250
	live := Live{1: 1}
	if f := l.Figures(0, &live, 1); f.Used != 900 || f.Held != 900 || f.Context != 250 || f.Enforcer != 300 || !f.Quiet {
		t.Fatalf("%+v", f)
	}
	generation := l.Generation(1)
	must.Equal(t, must.Get(l.Settle(1, generation))(t)[0], 600)
	must.Equal(t, must.Get(l.Settle(1, generation))(t)[0], 0, "settled twice")
	must.Equal(t, l.Held(0, 1), 0, "a settled lane holds")
	if f := l.Figures(0, &live, 1); f.Used != 300 || f.Held != 300 || f.Context != 0 || f.Peak != 900 || f.Recovered != 600 {
		t.Fatalf("%+v", f)
	}
	l.page.lane[1].entry[0].uncharged = 1 // its owner died in such a call
	must.Equal(t, l.Uncharged(0, 1), (Calls{UnderWay: 1}), "the begin of a call is missing")
	l.SetFree(1)
	b := give(t, l, 1)
	must.True(t, l.Generation(1) == generation+1 && b.Held() == 0 && l.Uncharged(0, 1) == (Calls{}), "the next owner inherits values")
	must.Equal(t, must.Get(l.Settle(1, generation))(t)[0], 0, "a late settlement reached the next owner")
}

// The owner has its own mapping.
func TestMoveRequestWakesTheProcess(t *testing.T) {
	l := create(t)
	give(t, l, 1)
	must.Equal(t, l.MoveOf(1), (Move{}), "a new lane says")
	owner := must.Get(Open(file(t, l), l.Identity()))(t)
	word := (*uint32)(unsafe.Pointer(&owner.page.lane[1].move))
	seen := make(chan Move)
	go func() {
		for was := uint32(0); ; was = atomic.LoadUint32(word) {
			const wait = 0 // FUTEX_WAIT
			_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), wait, uintptr(was), 0, 0, 0)
			if m := owner.MoveOf(1); m.Want != 0 {
				seen <- m
				return
			}
		}
	}()
	time.Sleep(50 * time.Millisecond) // time for the owner to wait
	want := l.SetWant(1, Locked)
	if m := <-seen; m.Want != want || m.Wanted() != Locked || m.Is != PlaceUnknown {
		t.Fatalf("the owner was woken, but reads %+v", m)
	}
	owner.page.lane[1].move.is, owner.page.lane[1].move.failure, owner.page.lane[1].move.answered = 1, 1, owner.page.lane[1].move.want
	must.Equal(t, l.MoveOf(1), (Move{Want: want, Is: Running, Answered: want, Failure: MoveFew}), "it has answered")
	for range 100 { // each is a new want, and nothing else changes
		next := l.SetWant(1, Bare)
		if m := l.MoveOf(1); next == want || m.Wanted() != Bare || m.Is != Running {
			t.Fatalf("after %x: %+v", want, m)
		}
		want = next
	}
	expect.True(t, l.SetWant(uint32(Lanes), Aside) == 0 && l.MoveOf(uint32(Lanes)) == (Move{}), "an invalid lane has an owner")
	l.SetFree(1)
	give(t, l, 1)
	expect.Equal(t, l.MoveOf(1), Move{}, "the move of the next owner")
}

func TestCheckNamesWhatWasOverwritten(t *testing.T) {
	l := create(t)
	withDevice(t, l)
	for name, offset := range map[string]int{
		"magic": 0, "device_count": 24, "flags": 32, "mode": 36, "name": 40, "limit": 128 + 16,
	} {
		saved := bytes.Clone(l.mem[offset : offset+8])
		l.mem[offset] ^= 1
		err := l.Check(false, false, []Device{someDevice})
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		copy(l.mem[offset:], saved)
	}
	must.Do(t, l.Check(false, false, []Device{someDevice}))
}

func TestNoContentOfALedgerCrashesOrHangsTheEnforcer(t *testing.T) {
	l := create(t)
	enforcer := withDevice(t, l)
	second := must.Get(unix.Mmap(int(file(t, l).Fd()), 0, int(Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		random := rand.NewChaCha8([32]byte{1})
		for {
			select {
			case <-stop:
				return
			default:
				n := int(random.Uint64()>>1) % (len(second) - 8)
				if random.Uint64()%2 == 0 {
					n %= 3 * 4096 // headers, and the first lanes
				}
				_, _ = random.Read(second[n : n+8])
			}
		}
	})
	live := Live{1: 1, 2: 1}
	for i := range 3000 {
		lane := uint32(i%3 + 1)
		_ = l.Assign(lane, Owner{PID: 1})
		l.SetLive(lane)
		_, _, _ = l.Lane(uint32(i))
		_, _ = l.Settle(lane, l.Generation(lane))
		l.SetFree(lane)
		_ = enforcer.Set(uint64(i))
		_ = l.Figures(i%20-2, &live, l.HighLane()+uint32(i))
		_ = l.Held(i, uint32(i*i))
		_, _ = l.Uncharged(i, uint32(i*i)), l.Number(i, uint32(i*i))
		_ = l.Check(false, false, []Device{someDevice})
		_ = l.DeviceCount()
	}
	close(stop)
	writer.Wait()
	must.Do(t, unix.Munmap(second))
}

// otherProcess is a C program with the interceptor's code that maps the ledger.
const otherProcess = `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "ledger.c"
static void *stay(void *nothing)
{
	(void)nothing;
	getchar();
	exit(0);
}
int main(void)
{
	struct ledger *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	struct ledger_account a;

	if (l == MAP_FAILED || !ledger_valid(l, sizeof(*l)))
		return 1;
	a = ledger_open(l, 0, 1);
	printf("%d %d %llu\n", ledger_charge(&a, 700), ledger_charge(&a, 700), (unsigned long long)l->device[0].limit);
	fflush(stdout);
	getchar();
	if (pthread_create(&(pthread_t){0}, NULL, stay, NULL))
		return 1;
	pthread_exit(NULL);
}
`

func TestGoAndCAgreeThroughSharedMemory(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("a C compiler is needed")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	must.Do(t, os.WriteFile(source, []byte(otherProcess), 0o600))
	must.Output(exec.Command(cc, "-O2", "-I", "../../interceptor", "-pthread", "-o", program, source).CombinedOutput())(t)
	l := create(t)
	withDevice(t, l)
	give(t, l, 1)
	cmd := exec.Command(program)
	cmd.ExtraFiles = []*os.File{file(t, l)}
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	defer func() { in.Close(); _ = cmd.Wait() }()
	var first, second, limit int
	must.Get(fmt.Fscan(out, &first, &second, &limit))(t)
	if first+second != 1 || limit != 1000 { // C evaluates the arguments in any order: one charge fits
		t.Fatal(first, second, limit)
	}
	must.Equal(t, l.Held(0, 1), 700, "bytes that Go sees in the lane")

	t.Run("and a restarted enforcer finds the ledger in it", func(t *testing.T) {
		needs.Root(t)
		other := l.Identity()
		other.Inode++
		all, err := Find(cmd.Process.Pid, wantedIDs(l.Identity(), other), func(Identity) bool { return true })
		if err != nil || len(all) != 1 || all[0].Identity != l.Identity() || all[0].Err != nil {
			t.Fatalf("%v, %v", all, err)
		}
		defer all[0].Ledger.Close()
		must.Equal(t, all[0].Ledger.Held(0, 1), 700, "the lane holds")
		must.Len(t, must.Get(Find(cmd.Process.Pid, wantedIDs(other), func(Identity) bool { return true }))(t), 0, "another ledger")
	})
	t.Run("also when its first thread has ended", func(t *testing.T) {
		needs.Root(t)
		must.Get(in.Write([]byte("\n")))(t)
		await.That(t, "it has ended", func() bool {
			return bytes.Contains(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)))(t), []byte(") Z "))
		})
		all, err := Find(cmd.Process.Pid, wantedIDs(l.Identity()), func(Identity) bool { return true })
		if err != nil || len(all) != 1 || all[0].Err != nil {
			t.Fatalf("%v, %v", all, err)
		}
		defer all[0].Ledger.Close()
		if mapped, err := Mapped(cmd.Process.Pid, l.Identity()); !mapped || err != nil {
			t.Fatal(err)
		}
	})
}

func wantedIDs(ids ...Identity) Wanted {
	w := make(Wanted)
	for _, id := range ids {
		w.Add(id)
	}
	return w
}

func TestALedgerThatIsMappedOftenIsFoundOnce(t *testing.T) {
	l, other := create(t), create(t)
	f := file(t, l)
	for range 100 {
		mem := must.Get(unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED))(t)
		defer func() { _ = unix.Munmap(mem) }()
	}
	one, two, none := l.Identity(), other.Identity(), Identity{Dev: l.Identity().Dev, Inode: 1 << 60}
	no := func(Identity) bool { return false }
	all, err := Find(os.Getpid(), wantedIDs(one, two, none), no)
	if err != nil || len(all) != 2 || !slices.Contains(all, Found{Identity: one}) || !slices.Contains(all, Found{Identity: two}) {
		t.Fatalf("%v, %v: want %v and %v", all, err, one, two)
	}
	if all, err := Find(2, wantedIDs(one), no); len(all) != 0 || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) { // a kernel thread
		t.Fatalf("%v, %v", all, err)
	}
}

func TestAnUnsealedLookAlikeIsNotOpened(t *testing.T) {
	l := create(t)
	fd := must.Get(unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC))(t)
	must.Do(t, unix.Ftruncate(fd, int64(Size)))
	var st unix.Stat_t
	must.Do(t, unix.Fstat(fd, &st))
	id := Identity{Name: l.Identity().Name, Dev: st.Dev, Inode: st.Ino}
	expect.ErrorIs(t, must.Err(Open(os.NewFile(uintptr(fd), "x"), id)), ErrDamaged)
}

func TestMessagesSurviveTheWire(t *testing.T) {
	request := Request{Op: OpDevice, Device: 3, UUID: [16]byte{1, 15: 2}, Bytes: 1 << 40}
	must.Equal(t, must.Get(DecodeRequest(request.Encode()))(t), request)
	host := Request{Op: OpHost, Bytes: 2, Used: 1}
	must.Equal(t, must.Get(DecodeRequest(host.Encode()))(t), host)
	reply := Reply{Status: StatusFull, Lane: 1, Device: 2, Bytes: 3, Size: 4, PoolLanes: [Pools]uint32{5, uint32(Slots), 15: 7}}
	expect.Equal(t, must.Get(DecodeReply(reply.Encode()))(t), reply)
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(Request{Op: OpAttach}.Encode())
	f.Add([]byte{})
	f.Add(make([]byte, MessageSize+1))
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := DecodeRequest(message)
		if err == nil && !bytes.Equal(r.Encode(), message) {
			t.Fatalf("%x was decoded as %+v", message, r)
		}
	})
}
