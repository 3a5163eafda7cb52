// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

func TestALeaseIsABrokerInASliceUntilItIsDropped(t *testing.T) {
	b := newBench(t, "")
	l := b.acquire(&leasepb.AcquireRequest{Vram: 64 << 20, Ttl: durationpb.New(2 * time.Minute)})
	if l.GetState() != leasepb.Lease_ACTIVE || l.GetDevice() != "GPU-b" || l.GetOverhead() != 632<<20 || l.GetComputeCapability() != "9.0" || l.GetUid() != alice || l.GetExpires() == nil {
		t.Errorf("%v", l)
	}
	r := b.enforcer.requests[0]
	if r.ID != l.GetId() || r.For.UID != alice || r.UID < b.FirstUID || r.UID > b.LastUID || r.GID != r.UID || r.TTL != 2*time.Minute ||
		!slices.Equal(r.Quotas, []api.Quota{{Device: "GPU-b", Bytes: 696 << 20}}) || !slices.Equal(r.Visible, []string{"GPU-b"}) || r.Session {
		t.Errorf("%+v", r)
	}
	// The broker runs with that uid only, in its own cgroup with its limits.
	pid := b.recordOf(l.GetId()).PID
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", r.UID)) ||
		!strings.Contains(string(status), "\nGroups:\t \n") {
		t.Errorf("%s, %v", status, err)
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(in), b.Cgroup+"/"+l.GetId()) {
		t.Errorf("%s, %v", in, err)
	}
	// Only the user can access sockets and token.
	dir := b.dirOf(l.GetId())
	for name, mode := range map[string]os.FileMode{tokenName: 0o600, sessionName: 0o600, sharedName: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != alice || st.Gid != alice || info.Mode().Perm() != mode {
			t.Errorf("%s: %d:%d %v", name, st.Uid, st.Gid, info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, recordName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// The broker received its configuration.
	config := b.configOf(l.GetId())
	token, err := os.ReadFile(filepath.Join(dir, tokenName))
	if err != nil || len(config.Token) != 64 || strings.TrimSpace(string(token)) != config.Token {
		t.Errorf("%q and %q, %v", token, config.Token, err)
	}
	if config.VRAM != 64<<20 || config.Clients != 16 || config.Linger != 0 || config.LoadTimeout != time.Second ||
		!slices.Equal(config.Environment, []string{"LD_PRELOAD=/lib.so", "GPUSLICE_DIR=/slice/bind", "CUDA_VISIBLE_DEVICES=GPU-b"}) {
		t.Errorf("%+v", config)
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || strings.Contains(string(text), config.Token) {
		t.Errorf("%q, %v", text, err)
	}

	ended, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: l.GetId()})
	if err != nil || ended.GetState() != leasepb.Lease_ENDED || ended.GetReason() != reasonDropped || ended.GetAddress() != "" {
		t.Errorf("%v, %v", ended, err)
	}
	b.nothingIsLeft()
	if again, err := b.Show(context.Background(), as(alice), l.GetId()); err != nil || again.GetReason() != reasonDropped {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := b.Drop(context.Background(), as(alice), &leasepb.DropRequest{Id: l.GetId()}); codeOf(err) != leasepb.Code_LEASE_EXPIRED || !strings.Contains(err.Error(), reasonDropped) {
		t.Errorf("dropped twice: %v", err)
	}
}

func (b *bench) configOf(id string) broker.Config {
	b.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(b.dirOf(id), sessionName))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	config, err := broker.ReadConfig(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	return config
}

func TestDropEndsInBoundedTime(t *testing.T) {
	for how, limit := range map[string]time.Duration{"": time.Second, "stubborn": 10 * exitGrace} { // ten times its duration
		b := newBench(t, how)
		await.Once(t, how+": a drop", limit, func() time.Duration {
			return b.drop(b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId())
		})
		b.nothingIsLeft()
	}
}

func TestAFailedAcquireLeavesNothing(t *testing.T) {
	for how, want := range map[string]string{
		"dies":    "its broker exited before it served",
		"refuses": "there is no GPU",
	} {
		b := newBench(t, how)
		_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		if codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", how, err)
		}
		b.nothingIsLeft()
	}
	// The caller disconnects.
	b := newBench(t, "mute")
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		failed <- err
	}()
	eventually(t, "its slice is there", func() bool { all, _ := b.enforcer.Slices(ctx); return len(all) == 1 })
	if list := b.List(ctx, as(0), false); len(list) != 0 {
		t.Errorf("what does not serve yet is listed: %v", list)
	}
	cancel()
	if err := <-failed; codeOf(err) != leasepb.Code_REFUSED {
		t.Error(err)
	}
	b.nothingIsLeft()
	// The broker's program does not exist.
	b.Broker = "/no/such/program"
	if _, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20}); codeOf(err) != leasepb.Code_REFUSED {
		t.Error(err)
	}
	b.nothingIsLeft()
}

func TestTheEnforcersRefusalKeepsItsFigures(t *testing.T) {
	b := newBench(t, "")
	for _, c := range []struct {
		err  error
		code leasepb.Code
	}{
		{&api.Error{Code: api.CodeQuotaExceeded, Message: "run-1 has 9GiB", Requested: 3, Limit: 2, Current: 0}, leasepb.Code_REFUSED},
		{api.Errorf(api.CodeForbidden, "uid 5001 may have no session"), leasepb.Code_REFUSED},
		{api.Errorf(api.CodeBadRequest, "a ttl of 3h is not accepted"), leasepb.Code_INVALID_REQUEST},
		{fmt.Errorf("%w: systemctl start gpusliced", api.ErrUnreachable), leasepb.Code_REFUSED},
	} {
		b.enforcer.set(func() { b.enforcer.refuse = c.err })
		_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
		if codeOf(err) != c.code || err.Error() != c.err.Error() {
			t.Errorf("%v: %v", c.err, err)
		}
		if f, ok := err.(*failure); ok && c.code == leasepb.Code_REFUSED && strings.Contains(err.Error(), "run-1") &&
			(f.GetRequested() != 3 || f.GetLimit() != 2 || f.Current == nil) {
			t.Errorf("%v", f)
		}
		b.nothingIsLeft()
	}
	b.enforcer.set(func() { b.enforcer.refuse = nil })
}

func TestBrokerKilledAtItsStartIsNoUserError(t *testing.T) {
	b := newBench(t, "")
	b.enforcer.set(func() { b.enforcer.killing = true })
	_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
	if code := codeOf(err); code == leasepb.Code_INVALID_REQUEST || !strings.Contains(err.Error(), "try again") {
		t.Errorf("%v: %v", code, err)
	}
	b.nothingIsLeft()
}

func TestABadRequestIsOneSentence(t *testing.T) {
	b := newBench(t, "")
	for name, c := range map[string]struct {
		request *leasepb.AcquireRequest
		want    string
	}{
		"no size":          {&leasepb.AcquireRequest{}, "vram is 0 bytes: 1 to"},
		"a huge size":      {&leasepb.AcquireRequest{Vram: 1<<64 - 1}, "are accepted"},
		"beyond any card":  {&leasepb.AcquireRequest{Vram: 1<<63 - 1}, "up to 79.48GiB are accepted"},
		"beyond the card":  {&leasepb.AcquireRequest{Vram: 100 << 30}, "vram is 100GiB, and A (GPU-a) has 80GiB, of which the broker's context and code take 532MiB: up to 79.48GiB are accepted"},
		"with overhead":    {&leasepb.AcquireRequest{Vram: 80<<30 - 632<<20 + 1, Device: "1"}, "B (GPU-b) has 80GiB"},
		"a short ttl":      {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(time.Millisecond)}, "1s to 876000h are"},
		"no ttl":           {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(0)}, "1s to 876000h are"},
		"a negative one":   {&leasepb.AcquireRequest{Vram: 1, Ttl: durationpb.New(-time.Hour)}, "1s to 876000h are"},
		"one that is none": {&leasepb.AcquireRequest{Vram: 1, Ttl: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "1s to 876000h are"},
		"a long one":       {&leasepb.AcquireRequest{Vram: 1, Ttl: &durationpb.Duration{Seconds: 1 << 40}}, "1s to 876000h are"},
		"a device":         {&leasepb.AcquireRequest{Vram: 1, Device: "7"}, `no device "7"`},
		"a tenant":         {&leasepb.AcquireRequest{Vram: 1, Tenant: "a b"}, "a b"},
		"a linger":         {&leasepb.AcquireRequest{Vram: 1, Linger: durationpb.New(-1)}, "0 to 876000h are accepted"},
		"clients":          {&leasepb.AcquireRequest{Vram: 1, Clients: 17}, "up to 16 are accepted"},
	} {
		_, err := b.Acquire(context.Background(), as(0), c.request)
		if codeOf(err) != leasepb.Code_INVALID_REQUEST || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.enforcer.requests) != 0 {
		t.Error("the enforcer was asked")
	}
}

func TestLargestLeaseGoesToTheCardThatFitsIt(t *testing.T) {
	b := newBench(t, "")
	// Device 1 has more room, and a larger overhead.
	if l := b.acquire(&leasepb.AcquireRequest{Vram: 80<<30 - 532<<20}); l.GetDevice() != "GPU-a" {
		t.Errorf("%v", l)
	}
}

func TestUserSeesAndEndsOnlyOwnLeases(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20, Device: "0"}).GetId()
	for name, err := range map[string]error{
		"show":  second(b.Show(ctx, as(bob), id)),
		"drop":  second(b.Drop(ctx, as(bob), &leasepb.DropRequest{Id: id})),
		"renew": second(b.Renew(ctx, as(bob), &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(time.Hour)})),
		"none":  second(b.Show(ctx, as(bob), "lease-none")),
	} {
		if codeOf(err) != leasepb.Code_NOT_FOUND || strings.ReplaceAll(err.Error(), id, "lease-none") != `you have no lease "lease-none"` {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.List(ctx, as(bob), false)) != 0 || len(b.List(ctx, as(alice), false)) != 1 || len(b.List(ctx, as(0), false)) != 1 {
		t.Error("not alice's and root's alone")
	}
	if l, err := b.Renew(ctx, as(alice), &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(time.Hour)}); err != nil || time.Until(l.GetExpires().AsTime()) < 59*time.Minute {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := b.Renew(ctx, as(alice), &leasepb.RenewRequest{Id: id}); codeOf(err) != leasepb.Code_INVALID_REQUEST {
		t.Error(err)
	}
	if _, err := b.Drop(ctx, as(0), &leasepb.DropRequest{Id: id}); err != nil {
		t.Error(err)
	}
	if _, err := b.Show(ctx, as(bob), id); codeOf(err) != leasepb.Code_NOT_FOUND || len(b.List(ctx, as(bob), true)) != 0 {
		t.Errorf("bob sees one that has ended: %v", err)
	}
	for _, who := range []uint32{alice, 0} {
		if all := b.List(ctx, as(who), true); len(all) != 1 || all[0].GetId() != id || all[0].GetState() != leasepb.Lease_ENDED || len(b.List(ctx, as(who), false)) != 0 {
			t.Errorf("those that have ended: %v", all)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestCausesOfALeasesEnd(t *testing.T) {
	// Both happen in one step of the enforcer, as the service may end the lease after the first.
	killed := func(b *bench, l *leasepb.Lease, change func()) {
		pid := b.recordOf(l.GetId()).PID
		b.enforcer.set(func() { change(); b.kill(pid) })
	}
	expire := func(b *bench, id string) {
		s := b.enforcer.slices[id]
		s.State = api.Expired
		b.enforcer.slices[id] = s
	}
	for name, c := range map[string]struct {
		how    string
		do     func(*bench, *leasepb.Lease)
		state  leasepb.Lease_State
		reason string
	}{
		"nobody is connected":     {"lingers", func(*bench, *leasepb.Lease) {}, leasepb.Lease_ENDED, reasonLinger},
		"the enforcer ends it":    {"", func(b *bench, l *leasepb.Lease) { killed(b, l, func() { expire(b, l.GetId()) }) }, leasepb.Lease_ENDED, reasonExpired},
		"its broker is stubborn":  {"stubborn", func(b *bench, l *leasepb.Lease) { b.enforcer.set(func() { expire(b, l.GetId()) }) }, leasepb.Lease_ENDED, reasonExpired},
		"an operator releases it": {"", func(b *bench, l *leasepb.Lease) { b.enforcer.set(func() { delete(b.enforcer.slices, l.GetId()) }) }, leasepb.Lease_ENDED, reasonReleased},
		"its slice is released and its broker killed": {"", func(b *bench, l *leasepb.Lease) {
			killed(b, l, func() { b.enforcer.silent = true; delete(b.enforcer.slices, l.GetId()) })
		}, leasepb.Lease_ENDED, reasonReleased},
		"its slice expires": {"", func(b *bench, l *leasepb.Lease) {
			b.enforcer.set(func() { b.enforcer.expired = l.GetId() })
		}, leasepb.Lease_ENDED, reasonExpired},
		"its slice is gone at its deadline": {"", func(b *bench, l *leasepb.Lease) {
			b.enforcer.set(func() { delete(b.enforcer.slices, l.GetId()) })
		}, leasepb.Lease_ENDED, reasonExpired},
		"the enforcer tells no events": {"", func(b *bench, l *leasepb.Lease) {
			b.enforcer.set(func() { b.enforcer.silent = true; delete(b.enforcer.slices, l.GetId()) })
		}, leasepb.Lease_ENDED, reasonReleased},
		"the enforcer is gone": {"", func(b *bench, l *leasepb.Lease) {
			b.enforcer.set(func() { b.enforcer.refuse = api.ErrUnreachable })
		}, leasepb.Lease_ENDED, reasonExpired},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.how)
			ttl := time.Second
			if c.how == "lingers" { // it may end before it can be renewed
				ttl = time.Hour
			}
			l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20, Ttl: durationpb.New(ttl)})
			if ttl == time.Second && name != "the enforcer is gone" && name != "its slice is gone at its deadline" {
				if _, err := b.Renew(context.Background(), as(alice), &leasepb.RenewRequest{Id: l.GetId(), Ttl: durationpb.New(time.Hour)}); err != nil {
					t.Fatal(err)
				}
			}
			c.do(b, l)
			var ended *leasepb.Lease
			eventually(t, "the lease has ended", func() bool {
				var err error
				ended, err = b.Show(context.Background(), as(alice), l.GetId())
				return err == nil && ended.GetState() != leasepb.Lease_ACTIVE
			})
			if ended.GetState() != c.state || ended.GetReason() != c.reason {
				t.Errorf("%v", ended)
			}
			if text := b.log.String(); c.reason != reasonReleased && (strings.Contains(text, "level=ERROR") || strings.Contains(text, "exited unexpectedly")) {
				t.Errorf("an end that was to come is an error in the log:\n%s", text)
			}
			b.enforcer.set(func() {
				b.enforcer.refuse = nil
				if b.enforcer.lists > 0 {
					t.Error("a request listed all slices of the host")
				}
			})
			b.nothingIsLeft()
		})
	}
}

func TestABrokerOutlivesTheService(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	keep := b.acquire(&leasepb.AcquireRequest{Vram: 64 << 20, Tenant: "t", Ttl: durationpb.New(time.Hour)})
	orphan := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	dead := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	before := b.configOf(keep.GetId())
	b.stop()
	for _, l := range []*leasepb.Lease{dead, orphan} {
		b.kill(b.recordOf(l.GetId()).PID)
		<-b.leases[l.GetId()].exited // this process is still its parent
	}
	b.enforcer.set(func() { delete(b.enforcer.slices, dead.GetId()) })
	b.start()
	eventually(t, "the lease with a slice has a broker", func() bool { return b.recordOf(orphan.GetId()).Session.Number == 1 && b.serves(orphan.GetId()) })
	if after := b.configOf(orphan.GetId()); after.Token != b.tokenOf(orphan.GetId()) {
		t.Errorf("%+v", after)
	}
	after, err := b.Show(ctx, as(alice), keep.GetId())
	if err != nil || after.GetState() != leasepb.Lease_ACTIVE || after.GetVram() != 64<<20 || after.GetTenant() != "t" || after.GetComputeCapability() != "9.0" || after.GetExpires() == nil ||
		!after.GetAcquired().AsTime().Equal(keep.GetAcquired().AsTime()) {
		t.Errorf("%v, %v", after, err)
	}
	if b.configOf(keep.GetId()).Token != before.Token {
		t.Error("another token")
	}
	eventually(t, "the lease without one has ended", func() bool { return b.show(dead.GetId()).GetReason() == reasonReleased })
	if n := len(b.cgroups.list()); n != 2 {
		t.Errorf("%d cgroups", n)
	}
	for _, l := range []*leasepb.Lease{keep, orphan} {
		if _, err := b.Drop(ctx, as(alice), &leasepb.DropRequest{Id: l.GetId()}); err != nil {
			t.Error(err)
		}
	}
	b.nothingIsLeft()
}

func TestLeasesLeftByAKilledServiceAreEnded(t *testing.T) {
	b := newBench(t, "")
	l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	orphan := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	b.stop()
	// Three leases are left: one without a broker in its record, one with only a cgroup, and one with only an empty
	// directory.
	lost := b.leases[l.GetId()]
	lost.PID = 0
	if err := lost.put(b.dirOf(l.GetId())); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.dirOf(orphan.GetId())); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.dirOf("lease-empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.enforcer.set(func() { clear(b.enforcer.slices) }) // as the enforcer does for an empty cgroup
	b.start()
	b.nothingIsLeft()
}

func TestLeasesAreBounded(t *testing.T) {
	b := newBench(t, "")
	b.MaxLeases = 3
	var wait sync.WaitGroup
	var mu sync.Mutex
	granted, refused := 0, 0
	for range 6 {
		wait.Go(func() {
			_, err := b.Acquire(context.Background(), as(alice), &leasepb.AcquireRequest{Vram: 1 << 20})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				granted++
			case codeOf(err) == leasepb.Code_REFUSED && strings.Contains(err.Error(), "the limit of this service"):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if granted != 3 || refused != 3 {
		t.Errorf("%d granted, %d refused", granted, refused)
	}
	uids := make(map[uint32]bool)
	for _, r := range b.enforcer.requests {
		uids[r.UID] = true
	}
	if len(uids) != 3 {
		t.Errorf("brokers have %d user ids", len(uids))
	}
}

func TestAnOperatorHasNoLimit(t *testing.T) {
	b := newBench(t, "")
	b.Operator = func(groups []uint32) bool { return slices.Contains(groups, 77) }
	for _, who := range []Peer{{UID: alice, Groups: []uint32{alice, 77}}, {UID: bob, Groups: []uint32{bob}}, {}} {
		l, err := b.Acquire(context.Background(), who, &leasepb.AcquireRequest{Vram: 1 << 20})
		if err != nil || l.GetUid() != who.UID {
			t.Fatalf("%v, %v", l, err)
		}
	}
	if r := b.enforcer.requests; r[0].For.UID != 0 || r[1].For.UID != bob || r[2].For.UID != 0 {
		t.Errorf("%+v", r)
	}
}

func TestLeaseDirectoryIsPrivateToTheService(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "leases")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: dir, FirstUID: 2_000_000_000, LastUID: 2_000_000_999}); err == nil || !strings.Contains(err.Error(), dir+" may be written by others") {
		t.Error(err)
	}
}

func TestUserIDRangeMustBeUnused(t *testing.T) {
	defer func(was string) { etc = was }(etc)
	etc = t.TempDir()
	for file, text := range map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\n" + strings.Repeat("#", 70_000) + "\nme:x:3005:100::/:/bin/sh\n\n+@nis\n", "subuid": "me:100000:65536\n", "subgid": "me:300000:65536\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		first, last uint32
		taken       string
	}{
		{3006, 99999, ""}, {3000, 3005, "passwd"}, {165535, 165536, "subuid"}, {165536, 299999, ""}, {1 << 30, 1 << 31, ""}, {365535, 400000, "subgid"}, {50000, 500000, "subuid"},
	} {
		err := checkUIDs(c.first, c.last)
		if (err == nil) != (c.taken == "") || err != nil && !strings.Contains(err.Error(), c.taken) {
			t.Errorf("%d-%d: %v", c.first, c.last, err)
		}
	}
	used := map[uint32]bool{2_000_000_001: true}
	var got []uint32
	last := uint32(2_000_000_002)
	for range 3 {
		uid, err := nextUID(2_000_000_000, 2_000_000_002, last, used)
		if err != nil {
			t.Fatal(err)
		}
		got, last = append(got, uid), uid
	}
	if !slices.Equal(got, []uint32{2_000_000_000, 2_000_000_002, 2_000_000_000}) {
		t.Error(got)
	}
	if _, err := nextUID(2_000_000_001, 2_000_000_001, 0, used); err == nil {
		t.Error("one that is used")
	}
	if uid, err := nextUID(0, 0, 0, nil); err == nil {
		t.Errorf("root's: %d", uid)
	}
}

func TestBrokerIgnoresTheServicesEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "LD_PRELOAD=/x.so", "CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_VISIBLE_DEVICES=1", "GPUSLICE_DIR=/x", "NOTIFY_SOCKET=/x", "LD_LIBRARY_PATH=/l"})
	if !slices.Equal(got, []string{"PATH=/bin", "LD_LIBRARY_PATH=/l"}) {
		t.Error(got)
	}
}
