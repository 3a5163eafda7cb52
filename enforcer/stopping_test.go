// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// A request that arrives while the enforcer stops changes nothing, and its error says to ask again.
func TestWhoAsksForAChangeWhenTheEnforcerStopsIsToldToAskAgain(t *testing.T) {
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
