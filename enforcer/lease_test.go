// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// clock is a time since boot that passes when the test says so.
type clock struct {
	mu sync.Mutex
	at time.Duration
}

func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += d
}

const grace = time.Minute

func newTimedHost(t *testing.T) (*host, *clock) {
	t.Helper()
	h, c := newHost(t, nil), &clock{at: time.Hour}
	h.with(func(o *enforcer.Options) { o.Clock, o.Grace = c.now, grace })
	return h, c
}

func (h *host) lease(id string, cgroup string, ttl time.Duration) *proc {
	h.t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+id)
	p := start(h.t, link, cgroup)
	request := api.RegisterRequest{ID: id, PID: p.pid(), TTL: ttl, Quotas: []api.Quota{on(gpu0, gib)}}
	if cgroup == "" {
		request.Session, request.UID, request.GID = true, uint32(os.Geteuid()), uint32(os.Getegid())
	}
	reply := must.Get(h.Register(context.Background(), request))(h.t)
	lead(h.t, link, reply)
	p.uses()
	return p
}

func (p *proc) ended() {
	p.t.Helper()
	done := make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(await.Patience):
		p.t.Fatalf("process %d is still there", p.pid())
	}
}

func (h *host) wantGone(id string) {
	h.t.Helper()
	eventually(h.t, "slice "+id+" is gone", func() bool {
		_, err := h.Slice(context.Background(), id)
		return errors.Is(err, api.ErrNotFound)
	})
}

func (h *host) expired(id string) {
	h.t.Helper()
	eventually(h.t, "slice "+id+" expires", func() bool { return h.see(id).State == api.Expired })
}

func (h *host) storyOf(id string) []string {
	h.t.Helper()
	events := must.Get(h.Events(context.Background(), "", 0, false))(h.t)
	var told []string
	for _, e := range events {
		if e.Slice == id {
			told = append(told, string(e.Kind)+" "+e.Cause)
		}
	}
	return told
}

func renewed(ttl time.Duration) api.RenewRequest { return api.RenewRequest{TTL: &ttl} }

func TestSliceEndsAtItsDeadline(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", "", time.Hour)
	c.pass(time.Hour - 1)
	p.must("charge 0 1")
	p.must("release 0 1")
	s := h.see("s")
	if s.State != api.Active || s.TTL != time.Hour || s.Remaining != 1 || s.Expires == nil || time.Until(*s.Expires).Abs() > time.Minute {
		t.Fatalf("%+v", s)
	}
	c.pass(1)
	p.ended()
	h.wantGone("s")
	expect.EqualSlices(t, h.storyOf("s"), []string{"registered ", "expired ", "released expired"}, "told was")
}

// A slice's processes are known in three ways: by a cgroup that the kernel kills at once, by one of v1, and by descent.
func TestProcessThatIgnoresSIGTERMIsKilledAfterGrace(t *testing.T) {
	places := map[string]func(*testing.T) string{"cgroup v2": newCgroup, "session": func(*testing.T) string { return "" }}
	if _, err := os.Stat(cgroupV1Root); err == nil {
		places["cgroup v1"] = newCgroupV1
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			cgroup := place(t)
			h, c := newTimedHost(t)
			p := h.lease("s", cgroup, time.Second)
			p.must("stubborn")
			p.must("charge 0 %d", gib/2)
			sibling := p
			if cgroup != "" {
				sibling = start(t, filepath.Join(h.options.RunDir, "to-s"), cgroup)
				sibling.must("stubborn")
			}
			c.pass(time.Second)
			h.expired("s")
			p.expect("refused", "charge 0 1")
			sibling.expect("status 3", "attach")
			if s := h.see("s"); s.Devices[0].Used != gib/2 || s.Devices[0].Limit != gib || s.Remaining != 0 || s.Reason == "" {
				t.Errorf("%+v", s)
			}
			for what, err := range map[string]error{
				"renewed":     must.Err(h.Renew(context.Background(), "s", renewed(time.Hour))),
				"given":       must.Err(h.Change(context.Background(), "s", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}})),
				"made a pass": must.Err(h.Renew(context.Background(), "s", renewed(0))),
			} {
				expect.ErrorIs(t, err, api.ErrExpired, what)
			}
			eventually(t, "it receives SIGTERM", func() bool { return p.must("terms") == 1 })
			eventually(t, "from then on the grace counts", func() bool { return h.Asked("s") })
			// Before the grace has passed it still gets answers.
			c.pass(grace - 1)
			p.must("release 0 1")
			c.pass(1)
			p.ended()
			if sibling != p {
				sibling.ended()
			}
			h.wantGone("s")
		})
	}
}

// A program that forks faster than its processes are listed escapes signals; its cgroup can be killed.
func TestAnEndIsNotEscapedByForking(t *testing.T) {
	cgroup := newCgroup(t)
	if _, err := os.Stat(filepath.Join(cgroup, "cgroup.kill")); err != nil {
		t.Skip("requires Linux 5.14")
	}
	h, c := newTimedHost(t)
	h.with(func(o *enforcer.Options) { o.Grace = time.Second }) // long enough for new processes to be asked
	p := h.lease("s", cgroup, time.Second)
	p.must("stubborn")
	t.Cleanup(func() { _ = os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0) })
	p.tell("hop")
	p.ended()
	c.pass(time.Second)
	h.expired("s")
	eventually(t, "slice s is gone", func() bool {
		c.pass(time.Second)
		_, err := h.Slice(context.Background(), "s")
		return errors.Is(err, api.ErrNotFound)
	})
	must.Len(t, processes(t, cgroup), 0, "left")
}

const cgroupV1Root = "/sys/fs/cgroup/pids"

func newCgroupV1(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	dir := must.Get(os.MkdirTemp(cgroupV1Root, "gpuslice-test-"))(t)
	t.Cleanup(func() { eventually(t, "remove the cgroup", func() bool { return os.Remove(dir) == nil }) })
	return dir
}

func TestRenewingMovesTheEnd(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", "", time.Minute)
	c.pass(30 * time.Second)
	s, err := h.Renew(context.Background(), "s", renewed(time.Hour))
	if err != nil || s.Remaining != time.Hour || s.TTL != time.Hour {
		t.Fatalf("%+v, %v", s, err)
	}
	h.restart()
	c.pass(time.Hour - 1)
	h.restart()
	if s := h.see("s"); s.State != api.Active || s.Remaining != 1 {
		t.Fatalf("%+v", s)
	}
	if s, err = h.Renew(context.Background(), "s", renewed(0)); err != nil || s.Expires != nil || s.TTL != 0 {
		t.Fatalf("for ever: %+v, %v", s, err)
	}
	c.pass(10000 * time.Hour)
	h.restart()
	p.must("charge 0 1")
	if s, err = h.Renew(context.Background(), "s", renewed(time.Second)); err != nil || s.Remaining != time.Second {
		t.Fatalf("less: %+v, %v", s, err)
	}
	c.pass(time.Second)
	p.ended()
	h.wantGone("s")
	expect.ErrorIs(t, must.Err(h.Renew(context.Background(), "s", renewed(time.Hour))), api.ErrNotFound)
}

// When a renewal and the expiry coincide, only one takes effect.
func TestARenewalThatWasGrantedIsKept(t *testing.T) {
	rounds := 20
	if os.Getenv("GPUSLICE_LONG") != "" {
		rounds = 500
	}
	h, c := newTimedHost(t)
	h.lease("other", "", time.Hour)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // renewals make the enforcer check all deadlines at once
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = h.Renew(context.Background(), "other", renewed(time.Hour))
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	var kept, over int
	for range rounds {
		p := h.lease("s", "", time.Second)
		errs := make(chan error)
		go func() { errs <- must.Err(h.Renew(context.Background(), "s", renewed(time.Hour))) }()
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		c.pass(time.Second)
		switch err := <-errs; {
		case err == nil:
			kept++
			if s := h.see("s"); s.State != api.Active || s.Remaining <= 0 {
				t.Fatalf("it was renewed, but is %+v", s)
			}
			p.must("charge 0 1")
			must.Get(h.Release(context.Background(), "s", 0, true))(t)
			p.kill()
		case errors.Is(err, api.ErrExpired), errors.Is(err, api.ErrNotFound):
			over++
			p.ended()
		default:
			t.Fatal(err)
		}
		h.wantGone("s")
		_ = os.Remove(filepath.Join(h.options.RunDir, "to-s"))
	}
	t.Logf("%d were renewed, the time of %d was over", kept, over)
}

func TestDeadlinesPassWhileNoEnforcerRuns(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", "", time.Hour)
	h.stop()
	c.pass(2 * time.Hour)
	p.must("charge 0 1") // needs no enforcer
	h.start()
	p.ended()
	h.wantGone("s")
}

func TestRestartContinuesAnExpiry(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", newCgroup(t), time.Hour)
	p.must("stubborn")
	p.must("charge 0 %d", gib/2)
	c.pass(time.Hour)
	eventually(t, "it receives SIGTERM", func() bool { return p.must("terms") == 1 })
	h.restart()
	if s := h.see("s"); s.State != api.Expired || s.Devices[0].Used != gib/2 {
		t.Fatalf("%+v", s)
	}
	p.expect("refused", "charge 0 1")
	p.must("release 0 1")
	expect.ErrorIs(t, must.Err(h.Renew(context.Background(), "s", renewed(time.Hour))), api.ErrExpired)
	h.stop()
	c.pass(grace)
	expect.Equal(t, p.must("terms"), 1, "signals that ask it to end")
	h.start()
	p.ended()
	h.wantGone("s")
}

// Changing the wall clock moves no deadline; only renewal does. After a suspension of the host, time has advanced in one step.
func TestRemainingTimeIgnoresChangesOfTheWallClock(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", "", time.Hour)
	other := h.lease("other", "", 48*time.Hour)
	for range 3 {
		h.restart()
		if s := h.see("s"); s.State != api.Active || s.Remaining != time.Hour || time.Until(*s.Expires).Round(time.Minute) != time.Hour {
			t.Fatalf("no time has passed: %+v", s)
		}
	}
	c.pass(24 * time.Hour)
	p.ended()
	h.wantGone("s")
	if s := h.see("other"); s.State != api.Active || s.Remaining != 24*time.Hour {
		t.Fatalf("%+v", s)
	}
	other.must("charge 0 1")
}

func TestTTLIsBoundedByMaxTTL(t *testing.T) {
	h, _ := newTimedHost(t)
	h.with(func(o *enforcer.Options) { o.MaxTTL = time.Hour })
	h.lease("s", "", 0)
	if s := h.see("s"); s.TTL != time.Hour || s.Remaining != time.Hour {
		t.Errorf("without a ttl: %+v", s)
	}
	p := start(t, "", "")
	_, err := h.Register(context.Background(), api.RegisterRequest{
		ID: "long", Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, gib)}, TTL: time.Hour + 1,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
	expect.ErrorIs(t, err, api.ErrBadRequest)
	expect.ErrorIs(t, must.Err(h.Renew(context.Background(), "s", renewed(2*time.Hour))), api.ErrBadRequest)
	expect.Equal(t, must.Get(h.Renew(context.Background(), "s", renewed(0)))(t).Remaining, time.Hour, "for ever")
}

// An engine can delete the container of an expired slice, and the expiry completes.
func TestAnExpiredSliceCanBeReleased(t *testing.T) {
	h, c := newTimedHost(t)
	p := h.lease("s", newCgroup(t), time.Hour)
	p.must("stubborn")
	c.pass(time.Hour)
	h.expired("s")
	p.kill()
	h.wantGone("s")
	expect.True(t, slices.Contains(h.storyOf("s"), "released expired"), "told was", h.storyOf("s"))
	q := h.lease("t", newCgroup(t), time.Hour)
	q.must("stubborn")
	c.pass(time.Hour)
	h.expired("t")
	must.Get(h.Release(context.Background(), "t", 0, true))(t)
	q.expect("refused", "charge 0 1")
	q.kill()
}

func newTimedDaemon(t *testing.T) *daemon {
	d := newDaemon(t)
	config := filepath.Join(d.dir, "config.toml")
	text := must.Get(os.ReadFile(config))(t)
	must.Do(t, os.WriteFile(config, append(text, "\n[expiry]\ngrace = \"100ms\"\n"...), 0o600))
	return d
}

// The enforcer dies at a step of a slice's expiry, and the next one continues from there.
func TestExpiryCompletesAfterAKillAtAnyPoint(t *testing.T) {
	for _, point := range []string{"expire.marked", "expire.closed", "expire.asked", "expire.noted", "expire.killed"} {
		t.Run(point, func(t *testing.T) {
			_ = os.Remove(newCgroup(t)) // skips the test before anything is built
			d := newTimedDaemon(t)
			d.start(point)
			c, keep := newContainer(t, d, "c"), newContainer(t, d, "k")
			must.Do(t, d.register(keep, "keep"))
			request := c.request("c")
			request.TTL = time.Second
			must.Do(t, d.registerAs(c, request))
			p := c.init
			p.must("attach")
			p.must("stubborn")
			p.must("device %s %d", hex0, 80*gib)
			d.died(point)
			if point != "expire.marked" && point != "expire.killed" {
				p.expect("refused", "charge 0 1")
			}
			d.startsAgain(point)
			p.ended()
			eventually(t, "the other slice alone is left", func() bool {
				dirs, _ := os.ReadDir(filepath.Join(d.dir, "run", "slices"))
				return len(d.ids()) == 1 && len(dirs) == 1
			})
			must.Equal(t, d.ids()["keep"].State, api.Active, "keep", d.log())
		})
	}
}

// The enforcer dies while a quota on two devices is changed: then both have the new one, or both the old.
func TestChangeIsAtomicUnderAKillAtAnyPoint(t *testing.T) {
	for _, point := range []string{"set.stored", "set.limited", "set.limited:2", "set.done"} {
		t.Run(point, func(t *testing.T) {
			_ = os.Remove(newCgroup(t)) // skips the test before anything is built
			d := newDaemon(t)
			d.start(point)
			c := newContainer(t, d, "c")
			request := c.request("c")
			request.Quotas = []api.Quota{on(api.AllDevices, 4*gib)}
			must.Do(t, d.registerAs(c, request))
			p := c.init
			p.uses()
			p.must("device %s %d", hex1, 80*gib)
			p.must("charge 1 %d", 3*gib)
			ttl := time.Hour
			_, err := d.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(api.AllDevices, 2*gib)}, TTL: &ttl})
			must.True(t, err != nil, "the enforcer answered: want it killed")
			d.died(point)
			d.startsAgain(point)
			s := d.ids()["c"]
			if s.State != api.Active || len(s.Devices) != 2 || s.Devices[0].Limit != 2*gib || s.Devices[1].Limit != 2*gib || s.Devices[1].Used != 3*gib || s.TTL != ttl {
				t.Fatalf("%+v\n%s", s, d.log())
			}
			p.must("charge 0 %d", 2*gib)
			p.expect("refused", "charge 0 1")
			p.expect("refused", "charge 1 1")
			// And a limit that a process overwrote is found.
			d.kill()
			d.startsAgain(point)
			must.Equal(t, d.ids()["c"].State, api.Active, d.log())
		})
	}
}
