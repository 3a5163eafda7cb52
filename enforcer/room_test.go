// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// The enforcer hands out no ledger that it could not record: the next enforcer would not find it.
func TestAttachIsRefusedWhileTheStoreIsFull(t *testing.T) {
	for _, what := range []string{"slices/a", "pools/llm"} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarted %t", what, again), func(t *testing.T) {
				var full atomic.Bool
				t.Cleanup(enforcer.BeforeWrites(func(key string) error {
					if full.Load() && key == what {
						return syscall.ENOSPC
					}
					return nil
				}))
				h, truth := newTruthHost(t)
				h.pool("llm", on(gpu0, 6*gib))
				p := h.member("a", "llm", on(gpu0, 4*gib))
				full.Store(true)
				if again { // the restart makes another ledger, as none was handed out
					h.restart()
				}
				p.expect(statusInternal, "attach")
				truth.set(gpu0, p.pid(), gib) // its hidden memory counts all the same
				charged := func(bytes uint64) func() bool {
					return func() bool { return h.see("a").Devices[0].Overhead == bytes && h.pooled("llm") == bytes }
				}
				eventually(t, "the memory is charged", charged(gib))
				truth.set(gpu0, p.pid(), 0)
				eventually(t, "the memory is released", charged(0))
				full.Store(false)
				p.uses().must("charge 0 %d", 3*gib)
				p.expect("refused", "charge 0 %d", 2*gib)
				h.restart()
				if used := h.see("a").Devices[0].Used + h.see("a").Devices[0].Overhead; used != 3*gib || h.pooled("llm") != 3*gib {
					t.Fatalf("%d bytes are charged, %d in the pool", used, h.pooled("llm"))
				}
				p.expect("refused", "charge 0 %d", 2*gib)
				b := h.member("b", "llm").uses()
				b.expect("refused", "charge 0 %d", 4*gib)
				b.must("charge 0 %d", 3*gib)
			})
		}
	}
}

// A slice to which no process has attached needs no room on the disk, neither to be restored nor to end.
func TestSliceIsRestoredWithoutDiskSpace(t *testing.T) {
	var full atomic.Bool
	t.Cleanup(enforcer.BeforeWrites(func(string) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}))
	h, c := newTimedHost(t)
	for _, id := range []string{"stays", "expires", "released"} {
		p := h.lease(id, newCgroup(t), time.Hour)
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it ignores SIGTERM
			t.Fatal(err)
		}
	}
	full.Store(true)
	h.restart()
	for _, id := range []string{"stays", "expires", "released"} {
		expect.Equal(t, h.see(id).State, api.Active, "state")
	}
	if _, err := h.Release(context.Background(), "released", 0, true); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	c.pass(time.Hour)
	h.expired("expires")
	full.Store(false)
	eventually(t, "the owed record is written", func() bool {
		return h.stored(`"released":true`)
	})
	h.restart()
	expect.ErrorIs(t, must.Err(h.Slice(context.Background(), "released")), api.ErrNotFound)
}

func TestASliceWithoutASocketGetsOneWhenItCan(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	p, reply := h.session("s", on(gpu0, 4*gib))
	p.uses().must("charge 0 %d", 3*gib)
	h.stop()
	obstacle := filepath.Join(reply.Dir, "bind", ".attach.sock")
	must.Do(t, os.Mkdir(obstacle, 0o700))
	h.start()
	if s := h.see("s"); s.State != api.Active || s.Devices[0].Used+s.Devices[0].Overhead != 3*gib {
		t.Fatalf("%+v", s)
	}
	p.must("charge 0 %d", gib)
	p.expect(statusUnreachable, "attach")
	must.Do(t, os.Remove(obstacle))
	eventually(t, "it can be asked", func() bool { return strings.HasPrefix(p.ask("attach"), "ok ") })
	p.uses().must("charge 0 %d", 4*gib) // attaching again released what the process held
	p.expect("refused", "charge 0 1")
}

// Ready means that a slice can be registered. A refusal for want of disk has the code of that.
func TestAFullRunDirectoryIsNotReadyAndRefusesWithItsCode(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	h.stop()
	dir := h.options.RunDir
	must.Do(t, unix.Mount("none", dir, "tmpfs", 0, "nr_inodes=60"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	h.start()
	h.session("before", on(gpu0, gib))
	must.True(t, h.health().Ready, h.health())
	var fill []string
	for err := error(nil); err == nil; {
		fill = append(fill, filepath.Join(dir, fmt.Sprint("fill-", len(fill))))
		err = os.WriteFile(fill[len(fill)-1], nil, 0o600)
	}
	eventually(t, "it is not ready", func() bool { return !h.health().Ready })
	if c := check(h.health(), "disk"); c.OK || !strings.Contains(c.Message, "no space left") {
		t.Errorf("%+v", c)
	}
	p := start(t, filepath.Join(dir, "to-s"), "")
	request := api.RegisterRequest{ID: "s", Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, gib)}}
	_, err := h.Register(context.Background(), request)
	if refusal := api.From(err); err == nil || refusal.Code != api.CodeStorage || strings.Contains(refusal.Message, dir) || !strings.Contains(refusal.Message, "no space left") {
		t.Errorf("%v", err)
	}
	h.wantGranted(gpu0, gib, 79*gib)
	for _, path := range fill {
		_ = os.Remove(path) // the last one was not created
	}
	eventually(t, "it is ready", func() bool { return h.health().Ready })
	expect.NoError(t, must.Err(h.Register(context.Background(), request)))
}
