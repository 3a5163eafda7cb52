// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// slowDisk delays the writes of some keys by five seconds, or until let is called.
type slowDisk struct {
	mu   sync.Mutex
	slow func(key string) bool
	in   chan string
	let  chan struct{}
}

func newSlowDisk(t *testing.T) *slowDisk {
	d := &slowDisk{slow: func(string) bool { return false }, in: make(chan string, 100)}
	t.Cleanup(enforcer.BeforeWrites(func(key string) error {
		d.mu.Lock()
		slow, let := d.slow(key), d.let
		d.mu.Unlock()
		if slow {
			d.in <- key
			select {
			case <-let:
			case <-time.After(2 * await.Patience): // outlasts each wait beside it
			}
		}
		return nil
	}))
	return d
}

// hang makes it slow. let ends that, and completes the writes in progress.
func (d *slowDisk) hang(slow func(key string) bool) (let func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow, d.let = slow, make(chan struct{})
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.slow = func(string) bool { return false }
		close(d.let)
	})
}

func all(string) bool { return true }

func TestSlowDiskDoesNotDelayChargesOfHiddenMemory(t *testing.T) {
	const limit, hidden = 60 * gib, gib
	ctx := context.Background()
	disk, truth := newSlowDisk(t), &fakeTruth{}
	h := newHost(t, truth)
	h.options.Caller = func(ctx context.Context) (session.Asker, bool) {
		if who, known := ctx.Value(askerKey{}).(session.Asker); known {
			return who, true
		}
		return asker(os.Getpid(), uint32(os.Geteuid())), true
	}
	h.restart()
	h.pool("llm", on(gpu0, 70*gib), on(gpu1, gib))
	b := h.member("b", "llm", on(gpu0, limit)).uses()
	b.must("charge 0 %d", gib)
	truth.set(gpu0, b.pid(), gib)
	var at uint64 // bytes that B hides by now
	during := func(what string, change func()) {
		t.Helper()
		truth.comparisons(t, 4)
		let := disk.hang(all)
		defer let()
		done := make(chan struct{})
		go func() {
			defer close(done)
			change()
		}()
		await.Value(t, what+": a write begins", disk.in)
		at += hidden
		truth.set(gpu0, b.pid(), gib+at)
		await.That(t, fmt.Sprintf("%s: %d bytes are charged to the slice and its pool while the write hangs", what, at), func() bool {
			return h.see("b").Devices[0].Overhead == at && h.pooled("llm") == gib+at
		})
		let()
		<-done
	}
	ttl := time.Hour
	h.member("a", "llm", on(gpu0, gib), on(gpu1, gib))
	change := func(r api.ChangeRequest) func() {
		return func() {
			expect.NoError(t, must.Err(h.Change(ctx, "a", r)))
		}
	}
	during("another quota", change(api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}}))
	during("another time", change(api.ChangeRequest{TTL: &ttl}))
	during("another quota of the pool", func() {
		expect.NoError(t, must.Err(h.SetPool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu0, 71*gib)}})))
	})
	during("a quota of the pool on another device", func() {
		expect.NoError(t, must.Err(h.SetPool(ctx, "llm", api.PoolRequest{Quotas: []api.Quota{on(gpu1, 2*gib)}})))
	})
	link := filepath.Join(h.options.RunDir, "to-e")
	e := start(t, link, "")
	unforeseen := must.Get(h.sees("e", e, []string{gpu0}, on(api.AllDevices, gib)))(t)
	lead(t, link, unforeseen)
	e.must("attach")
	during("a device that was not foreseen", func() { e.must("device %s %d", hex1, 80*gib) })
	ttl = time.Second
	change(api.ChangeRequest{TTL: &ttl})()
	during("the end of its time", func() {
		eventually(t, "the slice has ended", func() bool { _, err := h.Slice(ctx, "a"); return err != nil })
	})
	c, reply, token := h.tokenSession("c", on(gpu0, gib))
	c.must("attach")
	other := start(t, filepath.Join(reply.Dir, "bind"), "")
	during("a process that joins", func() {
		expect.NoError(t, h.join(other, "c", token))
	})
	during("a release", func() {
		expect.NoError(t, must.Err(h.Release(ctx, "c", 0, true)))
	})
	during("the cost of a context", func() {
		truth.set(gpu0, e.pid(), 300*mib)
		e.must("truth 0")
	})
	during("a registration", func() { h.session("d", on(gpu0, gib)) })
}

func TestAReleaseWaitsForNoOthersDisk(t *testing.T) {
	ctx := context.Background()
	disk := newSlowDisk(t)
	h := newHost(t, &fakeTruth{})
	h.session("a", on(gpu0, gib))
	const many = 50
	var begun []*proc
	for i := range many {
		h.session(fmt.Sprint("old", i), on(gpu0, mib))
		begun = append(begun, start(t, "/nonexistent", ""))
	}
	let := disk.hang(func(key string) bool { return key == "slices/a" })
	defer let()
	set := make(chan error, 1)
	go func() {
		_, err := h.set("a", on(gpu0, 2*gib))
		set <- err
	}()
	<-disk.in
	var others sync.WaitGroup
	for i, p := range begun {
		others.Go(func() {
			expect.NoError(t, must.Err(h.Release(ctx, fmt.Sprint("old", i), 0, true)))
		})
		others.Go(func() {
			r := api.RegisterRequest{ID: fmt.Sprint("new", i), Quotas: []api.Quota{on(gpu0, mib)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid())}
			expect.NoError(t, must.Err(h.Register(ctx, r)))
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		others.Wait()
	}()
	await.Value(t, "releases and registrations end while another slice's write hangs", done)
	must.Len(t, set, 0, "the write hangs")
	let()
	expect.NoError(t, <-set)
	expect.Equal(t, h.see("a").Devices[0].Limit, 2*gib, "limit")
}

// Of many concurrent registrations of an id one succeeds, and one that is released while it registers leaves nothing.
func TestConcurrentRegistrationsOfAnIDAdmitOne(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, &fakeTruth{})
	const many = 20
	for range 5 {
		var got atomic.Int32
		var all sync.WaitGroup
		for range many {
			p := start(t, "/nonexistent", "")
			all.Go(func() {
				_, err := h.Register(ctx, api.RegisterRequest{ID: "s", Quotas: []api.Quota{on(gpu0, 50*gib)}, Session: true, PID: p.pid(), UID: uint32(os.Geteuid())})
				if err == nil {
					got.Add(1)
				} else if !errors.Is(err, api.ErrExists) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must.Equal(t, got.Load(), 1, "have the id")
		for range many {
			all.Go(func() {
				if _, err := h.Release(ctx, "s", 0, true); err != nil && !errors.Is(err, api.ErrNotFound) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		h.wantGranted(gpu0, 0, 80*gib)
	}
}

// A request that arrives while the enforcer stops changes nothing, and its error says to ask again.
func TestChangeDuringShutdownIsAnsweredWithRetry(t *testing.T) {
	h := newHost(t, nil)
	h.session("s", on(gpu0, gib))
	must.Get(h.CreatePool(context.Background(), "p", api.PoolRequest{Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	h.stop()
	ctx, stopped := context.Background(), h.Enforcer
	quotas := []api.Quota{on(gpu0, 2*gib)}
	for name, ask := range map[string]func() error{
		"register": func() error {
			return must.Err(stopped.Register(ctx, api.RegisterRequest{ID: "t", Quotas: quotas, Session: true, PID: os.Getpid(), UID: uint32(os.Getuid())}))
		},
		"release": func() error { _, err := stopped.Release(ctx, "s", 0, true); return err },
		"change":  func() error { _, err := stopped.Change(ctx, "s", api.ChangeRequest{Quotas: quotas}); return err },
		"renew":   func() error { _, err := stopped.Renew(ctx, "s", api.RenewRequest{TTL: new(api.MinTTL)}); return err },

		"createPool": func() error { _, err := stopped.CreatePool(ctx, "q", api.PoolRequest{Quotas: quotas}); return err },
		"setPool":    func() error { _, err := stopped.SetPool(ctx, "p", api.PoolRequest{Quotas: quotas}); return err },
		"deletePool": func() error { _, err := stopped.DeletePool(ctx, "p"); return err },
	} {
		var refusal *api.Error
		if err := ask(); !errors.As(err, &refusal) || refusal.Code.Status() != 503 {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.start()
	if s := h.see("s"); s.State != api.Active || s.Quotas[0] != on(gpu0, gib) {
		t.Errorf("%+v", s)
	}
}
