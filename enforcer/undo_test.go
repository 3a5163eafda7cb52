// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// writes has enforcers that are started from now on call do before each write of a slice's record.
func writes(t *testing.T, id string) (do *atomic.Pointer[func() error]) {
	t.Helper()
	do = new(atomic.Pointer[func() error])
	t.Cleanup(enforcer.BeforeWrites(func(key string) error {
		if f := do.Load(); f != nil && key == "slices/"+id {
			return (*f)()
		}
		return nil
	}))
	return do
}

// A registration that fails leaves no slice, no directory and no byte, so the next one can have all of it.
func TestARegistrationThatFailsLeavesNothing(t *testing.T) {
	for name, fault := range map[string]func(dirs string) error{
		"it cannot be stored": func(string) error { return syscall.ENOSPC },
		"its socket cannot be made": func(dirs string) error {
			all, err := filepath.Glob(filepath.Join(dirs, "*", "bind"))
			if err == nil && len(all) == 1 {
				err = os.RemoveAll(all[0])
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			do := writes(t, "s")
			h := newOffice(t, admission.Limits{})
			dirs := filepath.Join(h.options.RunDir, "slices")
			once := func() error {
				do.Store(nil)
				return fault(dirs)
			}
			do.Store(&once)
			if _, err := h.ask("s", nil, on(gpu0, 80*gib)); err == nil || do.Load() != nil {
				t.Fatalf("it is registered: %v", err)
			}
			must.Len(t, must.Get(h.Slices(t.Context()))(t), 0)
			must.Len(t, must.Get(filepath.Glob(filepath.Join(dirs, "*")))(t), 0, "left")
			h.wantGranted(gpu0, 0, 80*gib)
			h.give("s", on(gpu0, 80*gib))
			must.Len(t, must.Get(filepath.Glob(filepath.Join(dirs, "*", "bind")))(t), 1, "slices are elsewhere")
		})
	}
}

func TestJoinThatCannotBeStoredIsUndone(t *testing.T) {
	do := writes(t, "s")
	h := newHost(t, nil)
	h.believe()
	_, reply, token := h.tokenSession("s", on(gpu0, 4*gib))
	p := start(t, filepath.Join(reply.Dir, "bind"), "")
	full := func() error { return syscall.ENOSPC }
	do.Store(&full)
	expect.Error(t, h.join(p, "s", token), "it has joined")
	do.Store(nil)
	p.expect("status 1", "attach")
	must.Do(t, h.join(p, "s", token))
	p.must("attach")
}

// A process has a lane in the slice and in all of its pools, or in none.
func TestProcessRefusedByAFullPoolHasNoLane(t *testing.T) {
	for _, full := range []string{"a", "b"} {
		h := newHost(t, nil)
		h.twoPools()
		p := h.memberOf("s", both)
		h.LeavePlacesInPool(full, 0)
		for range 3 {
			if answer := p.ask("attach"); !strings.HasPrefix(answer, "status ") {
				t.Fatalf("pool %s: %s", full, answer)
			}
			must.Equal(t, h.see("s").ProcessCount+h.seePool("a").ProcessCount+h.seePool("b").ProcessCount, 0, "pool", full, "places of the process")
		}
		h.LeavePlacesInPool(full, 1)
		p.must("attach")
		must.Get(h.Release(context.Background(), "s", 0, true))(t)
	}
}

// A device that cannot be stored is not granted.
func TestADeviceThatCannotBeStoredIsNotGranted(t *testing.T) {
	do := writes(t, "s")
	h := newHost(t, &fakeTruth{})
	link := filepath.Join(h.options.RunDir, "to-s")
	p := start(t, link, "")
	reply := must.Get(h.sees("s", p, []string{"0"}, on(api.AllDevices, 40*gib)))(t)
	lead(t, link, reply)
	p.must("attach")
	full := func() error { return syscall.ENOSPC }
	do.Store(&full)
	if answer := p.ask("device %s %d", hex1, 80*gib); !strings.HasPrefix(answer, "status ") {
		t.Fatalf("it is added: %s", answer)
	}
	h.wantGranted(gpu1, 0, 80*gib)
	do.Store(nil)
	p.must("device %s %d", hex1, 80*gib)
	h.wantGranted(gpu1, 40*gib, 40*gib)
}
