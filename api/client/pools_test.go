// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestPoolsAreAskedForByName(t *testing.T) {
	s := &service{pool: api.Pool{
		Name: "llm", Quotas: []api.Quota{{Device: "*", Bytes: 1 << 62}}, State: api.Active, Created: time.Now().UTC().Round(0),
		Devices: []api.PoolUse{{Device: "GPU-1", Index: -1, Limit: 1 << 62}}, Members: []string{"a", "b"}, ProcessCount: 3,
	}}
	c, ctx := enforcer(t, s), context.Background()
	quotas := []api.Quota{{Device: "0", Percent: 50}}
	for want, ask := range map[string]func() (api.Pool, error){
		"create llm": func() (api.Pool, error) { return c.CreatePool(ctx, "llm", api.PoolRequest{Quotas: quotas}) },
		"set llm":    func() (api.Pool, error) { return c.SetPool(ctx, "llm", api.PoolRequest{Quotas: quotas}) },
		"delete llm": func() (api.Pool, error) { return c.DeletePool(ctx, "llm") },
	} {
		p, err := ask()
		if err != nil || !reflect.DeepEqual(p, s.pool) || s.args[0] != want {
			t.Errorf("%s: %+v %v, requested: %v", want, p, err, s.args)
		}
		if s.args[1] != nil && !reflect.DeepEqual(s.args[1], quotas) {
			t.Errorf("%s: asked for %v", want, s.args[1])
		}
	}
	if p, err := c.Pool(ctx, "llm"); err != nil || !reflect.DeepEqual(p, s.pool) {
		t.Error(p, err)
	}
	if all, err := c.Pools(ctx); err != nil || !reflect.DeepEqual(all, []api.Pool{s.pool}) {
		t.Error(all, err)
	}
	for _, name := range []string{"", "../slices", ".x", "a b"} {
		expect.ErrorIs(t, must.Err(c.Pool(ctx, name)), api.ErrBadRequest, name)
	}
	s.err = api.Errorf(api.CodeRunning, "it has members")
	expect.ErrorIs(t, must.Err(c.DeletePool(ctx, "llm")), api.ErrRunning)
}
