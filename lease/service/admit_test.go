// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
)

type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func tryAcquire(b *bench, who Peer) error {
	_, err := b.Acquire(context.Background(), who, &leasepb.AcquireRequest{Vram: 1 << 20})
	return err
}

func TestUserWithoutALimitIsRefusedFirst(t *testing.T) {
	b := newBench(t, "")
	if err := tryAcquire(b, as(7000)); codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), "uid 7000 may have no session on this host") {
		t.Errorf("a user without a limit: %v", err)
	}
	if b.enforcer.asked != 0 {
		t.Error("the enforcer got a request of a user without a limit")
	}
	if err := tryAcquire(b, as(bob)); err != nil {
		t.Fatal(err)
	}
	if err := tryAcquire(b, as(bob)); codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), "uid 5002 has 1 leases, and may have 1 sessions") {
		t.Errorf("a second lease: %v", err)
	}
	b.changes = &session.Pace{Burst: 1, Interval: time.Hour}
	l := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20})
	for what, err := range map[string]error{
		"another lease": tryAcquire(b, as(alice)),
		"a renewal":     second(b.Renew(context.Background(), as(alice), &leasepb.RenewRequest{Id: l.GetId(), Ttl: durationpb.New(time.Hour)})),
	} {
		if codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), "in a short time") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if b.enforcer.asked != 2 {
		t.Errorf("the enforcer got %d requests for two leases", b.enforcer.asked)
	}
	if _, err := b.Renew(context.Background(), as(0), &leasepb.RenewRequest{Id: l.GetId(), Ttl: durationpb.New(time.Hour)}); err != nil {
		t.Errorf("root renews it: %v", err)
	}
}

func TestConcurrentCallsArePerUserAndDelayNoOther(t *testing.T) {
	b := newBench(t, "")
	b.enforcer.set(func() { b.enforcer.holding = true })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan error)
	acquire := func(uid uint32) {
		_, err := b.Acquire(ctx, as(uid), &leasepb.AcquireRequest{Vram: 1 << 20})
		answers <- err
	}
	asking := func() (n int) {
		b.enforcer.set(func() { n = b.enforcer.asking })
		return n
	}
	const more = 10
	for range maxAcquires + more {
		go acquire(alice)
	}
	for range more {
		if err := await.Value(t, "a call is refused", answers); codeOf(err) != leasepb.Code_REFUSED || !strings.Contains(err.Error(), "the limit for each user") {
			t.Error(err)
		}
	}
	eventually(t, "some are carried out", func() bool { return asking() == maxAcquiring })
	go acquire(bob)
	eventually(t, "another user's is, too", func() bool { return asking() == maxAcquiring+1 })
	cancel()
	for range maxAcquires + 1 {
		if await.Value(t, "a call has ended", answers) == nil {
			t.Error("a lease without a device")
		}
	}
	if n := b.enforcer.asked; n > maxAcquires+1 || len(b.acquires) != 0 {
		t.Errorf("the enforcer got %d requests; %v are left", n, b.acquires)
	}
}

func TestRefusalsOfAUserHaveFewLinesInTheLog(t *testing.T) {
	b, began := newBench(t, ""), time.Now()
	for range 1000 {
		_ = tryAcquire(b, as(7000))
	}
	_ = tryAcquire(b, as(7001))
	text := b.log.String()
	if allowed := await.Paced(began, 5, 10*time.Second); strings.Count(text, "uid=7000") > allowed || strings.Count(text, "uid=7001") != 1 {
		t.Errorf("%d lines of the one, %d of the other", strings.Count(text, "uid=7000"), strings.Count(text, "uid=7001"))
	}
	for uid := range uint32(2 * maxLogs) {
		b.logOf(uid)
	}
	if len(b.logs) > maxLogs+1 {
		t.Errorf("%d users have lines of their own", len(b.logs))
	}
}

func TestABrokersOutputIsLoggedAsABoundedValue(t *testing.T) {
	b, began := newBench(t, "writes"), time.Now()
	id := b.acquire(&leasepb.AcquireRequest{Vram: 1 << 20}).GetId()
	eventually(t, "the broker has restarted", func() bool { b.connects(id); return b.show(id).GetRestarts() > 0 })
	eventually(t, "that is logged", func() bool { return strings.Contains(b.log.String(), "exited unexpectedly") })
	text := b.log.String()
	brokers := 1 + int(b.recordOf(id).Session.Number) // at least those that wrote
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "time=2026-01-01"):
			t.Fatal("a client's line is in the log")
		case strings.Contains(line, "\x1b"):
			t.Error("a control character is in the log")
		case strings.Contains(line, "a broker wrote") && (len(line) > 2*lineBytes || !strings.Contains(line, "lease="+id)):
			t.Errorf("%.200s", line)
		case strings.Contains(line, "exited unexpectedly") && (!strings.Contains(line, `its last words"`) || len(line) > 2*lastBytes):
			t.Errorf("%d bytes: %.200s", len(line), line)
		}
	}
	if n, allowed := strings.Count(text, "a broker wrote"), brokers*await.Paced(began, 5, 10*time.Second); n == 0 || n > allowed {
		t.Errorf("%d brokers wrote %d lines, want at most %d", brokers, n, allowed)
	}
}

func TestLastOutputIsReadWhileAnotherProcessHoldsThePipe(t *testing.T) {
	o, w, err := newOutput("l", slog.New(slog.DiscardHandler))
	must.Do(t, err)
	defer w.Close()
	must.Get(w.WriteString("first\nlast"))(t)
	must.Equal(t, o.text(), "first\nlast")
}
