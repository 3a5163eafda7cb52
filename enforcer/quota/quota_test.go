// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"errors"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const gib = 1 << 30

// owner implements quota.Owner.
type owner struct {
	sync.Mutex
	t       *testing.T
	settled []int // pids
	damaged int
}

func (o *owner) Damaged()                                  { o.damaged++ }
func (o *owner) Ending(l *quota.Lane)                      { o.settled = append(o.settled, l.Process.PID) }
func (o *owner) ContextBytes(*quota.Device) (bytes uint64) { return 0 }

// with calls f with the lock held.
func (o *owner) with(f func()) {
	o.Lock()
	defer o.Unlock()
	f()
}

func (o *owner) eventually(what string, ok func() bool) {
	o.t.Helper()
	await.That(o.t, what, func() (is bool) {
		o.with(func() { is = ok() })
		return is
	})
}

// newQuota returns a quota with one device of 80 GiB with a limit, and without a ledger.
func newQuota(t *testing.T, limit uint64) (*quota.Quota, *owner) {
	t.Helper()
	deaths := must.Get(process.NewWatcher())(t)
	o := &owner{t: t}
	q := quota.New(quota.Options{Log: slog.New(slog.DiscardHandler), Owner: o, Lock: o, Deaths: deaths})
	uuid := must.Get(driver.ParseUUID("GPU-11111111-2222-3333-4444-555555555555"))(t)
	q.Devices = []*quota.Device{q.Describe(uuid, limit, 80*gib)}
	t.Cleanup(func() {
		o.with(func() { must.Do(t, q.Leave()) })
		must.Do(t, deaths.Close())
	})
	return q, o
}

func begun(t *testing.T, limit uint64) (*quota.Quota, *owner) {
	t.Helper()
	q, o := newQuota(t, limit)
	must.Do(t, q.Begin())
	return q, o
}

// start starts a process that ends with the test unless it is killed before.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.Start(t, cmd)
	return cmd
}

// attach assigns a lane to a process, and returns the process's account.
func attach(q *quota.Quota, o *owner, pid int) (l *quota.Lane, account *ledger.Account) {
	o.t.Helper()
	p := must.Get(process.Open(pid))(o.t)
	o.with(func() {
		l = &quota.Lane{Process: p}
		file := must.Get(q.Attach(l))(o.t)
		must.Do(o.t, file.Close())
		account = must.Get(q.Ledger.OpenAccount(0, l.Number))(o.t)
	})
	return l, account
}

func refused(t *testing.T, err error) {
	t.Helper()
	expect.ErrorIs(t, err, ledger.ErrRefused, "want a refusal")
}

func TestExitReleasesTheChargesOfAProcess(t *testing.T) {
	q, o := begun(t, 4*gib)
	first, second := start(t), start(t)
	_, a := attach(q, o, first.Process.Pid)
	_, b := attach(q, o, second.Process.Pid)
	must.Do(t, a.Charge(3*gib))
	refused(t, b.Charge(2*gib))
	must.Do(t, first.Process.Kill())
	o.eventually("its lane is settled", func() bool { return q.Count() == 1 })
	must.Do(t, b.Charge(4*gib))
	o.with(func() {
		if !slices.Equal(o.settled, []int{first.Process.Pid}) || q.Of(first.Process.Pid) != nil || q.Used(0) != 4*gib {
			t.Errorf("settled %v, used %d", o.settled, q.Used(0))
		}
		must.Do(t, q.Verify())
	})
}

func TestExecReleasesTheChargesOfTheFormerImage(t *testing.T) {
	q, o := begun(t, 4*gib)
	cmd := start(t)
	before, a := attach(q, o, cmd.Process.Pid)
	must.Do(t, a.Charge(3*gib))
	after, _ := attach(q, o, cmd.Process.Pid)
	o.with(func() {
		if q.Has(before) || !q.Has(after) || q.Count() != 1 || q.Used(0) != 0 || before.ID() == after.ID() {
			t.Errorf("%d lanes, %d bytes used", q.Count(), q.Used(0))
		}
	})
}

func TestALaneThatWasWithdrawnIsFree(t *testing.T) {
	q, o := begun(t, 4*gib)
	q.Next = uint32(ledger.Slots) // one lane is left
	l, _ := attach(q, o, start(t).Process.Pid)
	p := must.Get(process.Open(start(t).Process.Pid))(t)
	o.with(func() {
		expect.ErrorIs(t, must.Err(q.Attach(&quota.Lane{Process: p})), ledger.StatusFull)
		q.Withdraw(l)
	})
	must.Do(t, l.Process.Close())
	must.Do(t, p.Close())
	attach(q, o, start(t).Process.Pid)
}

// noDescriptors prevents this process from opening descriptors while f runs.
func noDescriptors(t *testing.T, f func()) {
	t.Helper()
	var limit unix.Rlimit
	must.Do(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 1 // descriptor 0 is open; with a limit of 0 fcntl(2) fails with EINVAL
	must.Do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	defer func() { must.Do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	f()
}

// One lane is left: after each failure the next process gets it.
func TestLaneOfAFailedAttachIsFree(t *testing.T) {
	for name, failing := range map[string]func(t *testing.T, q *quota.Quota, p *process.Handle) error{
		"no descriptor can be made": func(t *testing.T, q *quota.Quota, p *process.Handle) (err error) {
			noDescriptors(t, func() { _, err = q.Attach(&quota.Lane{Process: p}) })
			expect.ErrorIs(t, err, unix.EMFILE)
			return err
		},
		"its exit cannot be watched": func(t *testing.T, q *quota.Quota, p *process.Handle) error {
			must.Do(t, p.Close())
			return must.Err(q.Attach(&quota.Lane{Process: p}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, o := begun(t, 4*gib)
			q.Next = uint32(ledger.Slots) // one lane is left
			p := must.Get(process.Open(start(t).Process.Pid))(t)
			o.with(func() {
				for range 2 {
					if err := failing(t, q, p); err == nil || errors.Is(err, ledger.StatusFull) {
						t.Errorf("%v", err)
					}
				}
				if q.Count() != 0 || q.Of(p.PID) != nil || q.State != api.Active {
					t.Errorf("%d lanes, %s", q.Count(), q.State)
				}
				must.Len(t, q.Owners(), 0, "the page names")
				must.Do(t, q.Verify())
			})
			must.Do(t, p.Close())
			_, a := attach(q, o, start(t).Process.Pid)
			must.Do(t, a.Charge(4*gib))
		})
	}
}

func TestAwayProcessLendsItsCharges(t *testing.T) {
	q, o := begun(t, 4*gib)
	away, a := attach(q, o, start(t).Process.Pid)
	_, b := attach(q, o, start(t).Process.Pid)
	must.Do(t, a.Charge(3*gib))
	resume := func() (was bool, err error) {
		o.with(func() { was, err = q.Resume(away) })
		return was, err
	}
	o.with(func() {
		must.Do(t, q.Suspend(away))
		if d := q.Devices[0]; d.Granted() != 4*gib || d.Limit != 7*gib || q.Used(0) != 0 || q.Held(0, away) != 0 {
			t.Errorf("granted %d, limit %d, used %d", d.Granted(), d.Limit, q.Used(0))
		}
	})
	must.Do(t, b.Charge(4*gib))
	refused(t, b.Charge(1))
	expect.ErrorIs(t, must.Err(resume()), ledger.StatusRefused, "its lent bytes are taken")
	must.Do(t, b.Release(3*gib))
	o.with(func() {
		if d := q.Devices[0]; d.Limit != 7*gib || !q.Ledger.Suspended(away.Number) {
			t.Errorf("limit %d", d.Limit)
		}
	})
	expect.True(t, must.Get(resume())(t), "it was not suspended")
	refused(t, b.Charge(1))
	o.with(func() { must.Do(t, q.Verify()) })
}

func TestAFrozenQuotaGrantsNothing(t *testing.T) {
	q, o := begun(t, 4*gib)
	_, a := attach(q, o, start(t).Process.Pid)
	must.Do(t, a.Charge(gib))
	o.with(func() {
		expect.True(t, q.Freeze("a test") && !q.Freeze("a test"), "it changes once")
		must.Do(t, q.Verify())
	})
	refused(t, a.Charge(1))
	must.Do(t, a.Release(gib/2))
	o.with(func() {
		expect.True(t, q.Thaw() && q.Frozen == "", "not thawed")
	})
	must.Do(t, a.Charge(gib))
}

func TestUnverifiedMemoryIsChargedUpToTheLimit(t *testing.T) {
	q, o := begun(t, 4*gib)
	_, a := attach(q, o, start(t).Process.Pid)
	must.Do(t, a.Charge(3*gib))
	for _, c := range []struct{ known, unverified, want uint64 }{
		{0, 2 * gib, gib}, // up to the limit
		{gib / 2, 0, gib / 2},
		{5 * gib, 2 * gib, 5 * gib}, // bytes that the driver holds are charged regardless of the limit
		{0, 0, 0},
	} {
		o.with(func() {
			q.SetExcess(0, c.known, c.unverified)
			expect.Equal(t, q.Ledger.Held(0, 0), c.want, c)
			must.Do(t, q.Verify())
		})
	}
}

func TestAQuotaThatWasLoweredIsOverItsLimit(t *testing.T) {
	q, o := begun(t, 4*gib)
	_, a := attach(q, o, start(t).Process.Pid)
	must.Do(t, a.Charge(3*gib))
	o.with(func() {
		d := q.Devices[0]
		d.SetLimit(2*gib, d.HighestLimit())
		must.Do(t, q.Write(0))
		if has, used := q.Commitment(), q.InUse(); has[d.Name] != 2*gib || used[d.Name] != 3*gib || d.HighestLimit() != 4*gib {
			t.Errorf("%v of %v, highest %d", used, has, d.HighestLimit())
		}
		expect.True(t, q.OverLimit(0), "the quota is not over its limit")
	})
	refused(t, a.Charge(1))
}

func TestAQuotaCountsForNoMoreThanItsDevice(t *testing.T) {
	q, o := newQuota(t, ledger.NoLimit)
	o.with(func() {
		expect.Equal(t, q.Commitment()[q.Devices[0].Name], 80*gib)
	})
}

func TestADeviceThatThePageHasNoPlaceForIsNotAdded(t *testing.T) {
	q, o := begun(t, 4*gib)
	o.with(func() {
		for n := byte(1); ; n++ {
			full, last := len(q.Devices) == ledger.Devices, q.Devices[len(q.Devices)-1]
			err := q.Add(q.Describe(driver.UUID{Raw: [16]byte{n}}, gib, 80*gib))
			if !full {
				must.Do(t, err)
				continue
			}
			if !errors.Is(err, ledger.StatusClosed) || len(q.Devices) != ledger.Devices || q.Devices[ledger.Devices-1] != last || q.State != api.Damaged {
				t.Errorf("%v: %d devices, %s", err, len(q.Devices), q.State)
			}
			return
		}
	})
}

// The bytes lent by a checkpointed process are added to each new limit until the process exits.
func TestLimitIsSetBesideLentBytes(t *testing.T) {
	q, o := begun(t, 4*gib)
	cmd := start(t)
	away, a := attach(q, o, cmd.Process.Pid)
	must.Do(t, a.Charge(3*gib))
	d := q.Devices[0]
	o.with(func() {
		must.Do(t, q.Suspend(away))
		d.SetLimit(5*gib, d.HighestLimit())
		must.Do(t, q.Write(0))
		if d.Granted() != 5*gib || d.Limit != 8*gib || !d.Lends(away.Number) {
			t.Errorf("granted %d, limit %d", d.Granted(), d.Limit)
		}
		must.Do(t, q.Verify())
	})
	must.Do(t, cmd.Process.Kill())
	o.eventually("its lane is settled", func() bool { return q.Count() == 0 })
	o.with(func() {
		if d.Granted() != 5*gib || d.Limit != 5*gib || d.Lends(away.Number) || q.Used(0) != 0 {
			t.Errorf("granted %d, limit %d, used %d after its exit", d.Granted(), d.Limit, q.Used(0))
		}
		must.Do(t, q.Verify())
	})
	_, b := attach(q, o, start(t).Process.Pid)
	refused(t, b.Charge(5*gib+1))
	must.Do(t, b.Charge(5*gib))
}

func TestAnOverwrittenPageIsDamaged(t *testing.T) {
	q, o := begun(t, 4*gib)
	_, a := attach(q, o, start(t).Process.Pid)
	other := must.Get(q.Ledger.OpenAccount(0, 0))(t)
	must.Do(t, other.Limit(80*gib)) // as one of its processes might
	o.with(func() {
		err := q.Verify()
		must.True(t, errors.Is(err, ledger.ErrDamaged), err)
		q.Damage(err)
		if q.State != api.Damaged || !q.Overwritten || o.damaged != 1 {
			t.Errorf("%s, overwritten %v, told %d times", q.State, q.Overwritten, o.damaged)
		}
	})
	refused(t, a.Charge(1))
}

// inherit adopts the ledger of a killed enforcer's quota in another quota.
func inherit(t *testing.T, from *quota.Quota, r quota.Restart) (*quota.Quota, *owner) {
	t.Helper()
	q, o := newQuota(t, 4*gib)
	file, err := from.Ledger.File()
	must.Do(t, err)
	q.Ledger, err = ledger.Open(file, from.Identity)
	must.Do(t, err)
	claims := q.Claims(func(*process.Handle) bool { return true })
	o.with(func() { q.Adopt(r, claims) })
	return q, o
}

// A process keeps its lane if the owner accepts it, and if it is alive after that.
func TestRefusedProcessLosesItsLane(t *testing.T) {
	for name, c := range map[string]struct {
		keep func(cmd *exec.Cmd) bool
		has  bool
	}{
		"it is kept":                {func(*exec.Cmd) bool { return true }, true},
		"it is not kept":            {func(*exec.Cmd) bool { return false }, false},
		"it exits while it is kept": {func(cmd *exec.Cmd) bool { _ = cmd.Process.Kill(); _ = cmd.Wait(); return true }, false},
	} {
		before, o := begun(t, 4*gib)
		cmd := start(t)
		l, a := attach(before, o, cmd.Process.Pid)
		must.Do(t, a.Charge(gib))
		o.with(func() { before.Deaths.Unwatch(l.Process) })
		q, after := newQuota(t, 4*gib)
		file, err := before.Ledger.File()
		must.Do(t, err)
		q.Ledger, err = ledger.Open(file, before.Identity)
		must.Do(t, err)
		claims := q.Claims(func(*process.Handle) bool { return c.keep(cmd) })
		if len(claims) != 1 || (claims[0].Process != nil) != c.has {
			t.Errorf("%s: %+v", name, claims)
		}
		after.with(func() {
			q.Adopt(quota.Restart{}, claims)
			if used := q.Used(0); (used == gib) != c.has || q.Count() == 1 != c.has {
				t.Errorf("%s: %d used, %d lanes", name, used, q.Count())
			}
		})
	}
}

// After a restart, each lane up to the highest assigned one is assigned or free.
func TestARestartLosesNoLane(t *testing.T) {
	before, o := begun(t, 4*gib)
	free, _ := attach(before, o, start(t).Process.Pid)
	attach(before, o, start(t).Process.Pid)
	dies := start(t)
	gone, _ := attach(before, o, dies.Process.Pid)
	o.with(func() {
		before.Withdraw(free)
		before.Deaths.Unwatch(gone.Process)
	})
	must.Do(t, free.Process.Close())
	must.Do(t, dies.Process.Kill())
	_ = dies.Wait()
	q, after := inherit(t, before, quota.Restart{})
	q.Next = uint32(ledger.Slots) + 1 // no lane is left above
	numbers := make(map[uint32]bool)
	for range 2 {
		l, _ := attach(q, after, start(t).Process.Pid)
		numbers[l.Number] = true
	}
	if !numbers[free.Number] || !numbers[gone.Number] {
		t.Errorf("%v, want %d and %d", numbers, free.Number, gone.Number)
	}
}

// The earlier enforcer may have been killed before it closed the page.
func TestAPageThatWasOverwrittenIsClosedByARestart(t *testing.T) {
	before, o := begun(t, 4*gib)
	_, a := attach(before, o, start(t).Process.Pid)
	must.Do(t, a.Charge(1))
	q, after := newQuota(t, 4*gib)
	q.WasOverwritten("a test")
	file, err := before.Ledger.File()
	must.Do(t, err)
	q.Ledger, err = ledger.Open(file, before.Identity)
	must.Do(t, err)
	claims := q.Claims(func(*process.Handle) bool { return true })
	after.with(func() { q.Adopt(quota.Restart{}, claims) })
	refused(t, a.Charge(1))
	if q.State != api.Damaged || !q.Overwritten || q.Reason != "a test" {
		t.Errorf("%s (%s), overwritten %v", q.State, q.Reason, q.Overwritten)
	}
}

func TestARestartAdoptsLiveProcesses(t *testing.T) {
	before, o := begun(t, 4*gib)
	lives, dies := start(t), start(t)
	_, a := attach(before, o, lives.Process.Pid)
	away, b := attach(before, o, start(t).Process.Pid)
	gone, c := attach(before, o, dies.Process.Pid)
	must.Do(t, a.Charge(gib))
	must.Do(t, b.Charge(gib))
	must.Do(t, c.Charge(gib))
	o.with(func() {
		must.Do(t, before.Suspend(away))
		before.SetExcess(0, gib/2, 0)
		before.Deaths.Unwatch(gone.Process)
	})
	must.Do(t, dies.Process.Kill())
	_ = dies.Wait()
	q, after := inherit(t, before, quota.Restart{})
	after.with(func() {
		if q.State != api.Active || q.Count() != 2 || q.Of(lives.Process.Pid) == nil {
			t.Fatalf("%s (%s), %d lanes", q.State, q.Reason, q.Count())
		}
		if d := q.Devices[0]; d.Limit != 4*gib || d.Inherited != gib/2 || q.Used(0) != 2*gib+gib/2 {
			t.Errorf("limit %d, inherited %d, used %d: want the bytes of the checkpointed process charged again", d.Limit, d.Inherited, q.Used(0))
		}
		l := q.Of(away.Process.PID)
		if l == nil || !l.Lent {
			t.Errorf("%+v: still checkpointed", l)
		}
	})
}

func TestAProcessHasOneLaneAfterARestart(t *testing.T) {
	before, o := begun(t, 4*gib)
	cmd := start(t)
	l, a := attach(before, o, cmd.Process.Pid)
	must.Do(t, a.Charge(gib))
	o.with(func() { // like a process that writes its identity into another lane
		p := l.Process
		must.Do(t, before.Ledger.Assign(2, ledger.Owner{PID: p.PID, Start: p.Start, NSPID: p.NSPID, PIDNS: p.PIDNS}))
		before.Ledger.SetLive(2)
	})
	q, after := inherit(t, before, quota.Restart{})
	after.with(func() {
		if q.Count() != 1 || q.Used(0) != gib {
			t.Errorf("%d lanes, %d bytes used", q.Count(), q.Used(0))
		}
	})
	another, _ := attach(q, after, start(t).Process.Pid)
	expect.Equal(t, another.Number, 2, "lane")
}

func TestARestartFindsAPageThatWasOverwritten(t *testing.T) {
	before, _ := begun(t, 4*gib)
	other := must.Get(before.Ledger.OpenAccount(0, 0))(t)
	must.Do(t, other.Limit(80*gib))
	q, _ := inherit(t, before, quota.Restart{})
	if q.State != api.Damaged || q.Overwritten {
		t.Errorf("%s, overwritten %v: another version may have left the page like that", q.State, q.Overwritten)
	}
}

func TestAFrozenQuotaStaysFrozenAfterARestart(t *testing.T) {
	before, o := begun(t, 4*gib)
	o.with(func() { before.Freeze("a test") })
	for _, why := range []string{"a test", ""} {
		q, _ := inherit(t, before, quota.Restart{Frozen: why})
		if q.State != api.Active || q.Frozen != why || q.Devices[0].Frozen != (why != "") || (q.Ledger.Limit(0) == 0) != (why != "") {
			t.Errorf("%q: %s %s, limit on the page %d", why, q.State, q.Reason, q.Ledger.Limit(0))
		}
	}
}

func TestAnExpiredQuotaTakesBackAndGivesNothing(t *testing.T) {
	q, o := begun(t, 4*gib)
	l, a := attach(q, o, start(t).Process.Pid)
	must.Do(t, a.Charge(gib))
	o.with(func() {
		q.Expire()
		expect.Equal(t, q.State, api.Expired)
	})
	expect.Error(t, a.Charge(1), "a charge was granted")
	o.with(func() {
		q.Settle(l)
		expect.Equal(t, q.Used(0), 0, "bytes are used")
	})
}
