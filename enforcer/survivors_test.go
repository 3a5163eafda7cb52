// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// What outlives a session is not free, however the session ended, and whatever became of the enforcer meanwhile.
func TestWhatOutlivesASessionCountsUntilItHasEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed: an enforcer without privileges is not restarted")
	}
	for how, end := range map[string]func(t *testing.T, h *host, first *proc){
		"released by force": func(t *testing.T, h *host, _ *proc) {
			if _, err := h.Release(context.Background(), "s", 0, true); err != nil {
				t.Fatal(err)
			}
		},
		"its first process was killed": func(_ *testing.T, _ *host, first *proc) { first.kill() },
		"it was killed while no enforcer ran": func(_ *testing.T, h *host, first *proc) {
			h.stop()
			first.kill()
			h.start()
		},
	} {
		t.Run(how, func(t *testing.T) {
			h := newHost(t, &fakeTruth{})
			h.believe()
			first, reply, token := h.tokenSession("s", on(gpu0, 8*gib))
			other := start(t, filepath.Join(reply.Dir, "bind"), "")
			if err := h.join(other, "s", token); err != nil {
				t.Fatal(err)
			}
			other.must("attach")
			other.must("charge 0 %d", 3*gib)
			end(t, h, first)
			gone := func() bool {
				_, err := h.Slice(context.Background(), "s")
				return errors.Is(err, api.ErrNotFound)
			}
			eventually(t, "the session is gone", gone)
			eventually(t, "what it held counts", func() bool { return h.device(gpu0).Quotas == 3*gib })
			other.expect("refused", "charge 0 1")
			h.restart()
			h.given(gpu0, 3*gib, 77*gib)
			p := start(t, "/nonexistent", "")
			_, err := h.Register(as(p.pid(), 0), api.RegisterRequest{ID: "t", Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, 78*gib)}})
			if err == nil || !strings.Contains(err.Error(), "s has 3GiB") {
				t.Errorf("%v", err)
			}
			other.kill()
			eventually(t, "it is free", func() bool { return h.device(gpu0).Quotas == 0 })
			if left, err := os.ReadDir(filepath.Join(h.options.RunDir, "slices")); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// A user has no more by ending one session after the other while their processes live on.
func TestAUsersLimitHoldsForWhatOutlivesHisSessions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed, to serve other users")
	}
	for _, truth := range []*fakeTruth{{}, nil} {
		h, u := newUsers(t, truth)
		link := filepath.Join(h.options.RunDir, "to-a")
		p := start(t, link, "")
		reply, err := u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, 8*gib)}, Session: true, PID: p.pid(), UID: alice})
		if err != nil {
			t.Fatal(err)
		}
		lead(t, link, reply)
		p.must("attach")
		p.must("device %s %d", hex0, 80*gib)
		p.must("charge 0 %d", 8*gib)
		if _, err := u.Release(as(p.pid(), alice), "u5001-a", 0, true); err != nil {
			t.Fatal(err)
		}
		if _, err := begin(t, u, alice, "b", on(gpu0, 3*gib)); !errors.Is(err, api.ErrQuotaExceeded) || !strings.Contains(err.Error(), "have 8GiB") {
			t.Errorf("%v", err)
		}
		p.kill()
		eventually(t, "it is the user's again", func() bool {
			_, err := begin(t, u, alice, "b", on(gpu0, 3*gib))
			return err == nil
		})
	}
}
