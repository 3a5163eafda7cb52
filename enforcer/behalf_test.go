// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func behalf(t *testing.T, h *host, asker context.Context, r api.RegisterRequest) (*proc, api.RegisterReply, error) {
	t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+r.ID)
	p := start(t, link, newCgroup(t))
	r.PID, r.UID, r.GID = p.pid(), 7001, 7002
	reply, err := h.Register(asker, r)
	if err == nil {
		lead(t, link, reply)
	}
	return p, reply, err
}

func TestWhatRootBeginsForAUserIsWithinTheUsersLimit(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	root := as(os.Getpid(), 0)
	forAlice := &api.User{UID: alice}
	p, reply, err := behalf(t, h, root, api.RegisterRequest{ID: "one", Quotas: []api.Quota{on(gpu0, 6*gib)}, For: forAlice})
	must.Do(t, err)
	p.must("attach")

	for range 2 {
		var refusal *api.Error
		if _, err := begin(t, u, alice, "b", on(gpu0, 5*gib)); !errors.As(err, &refusal) || refusal.Code != api.CodeQuotaExceeded || !strings.Contains(refusal.Message, "one") {
			t.Errorf("11 of 10 GiB: %v", err)
		}
		if _, _, err := behalf(t, h, root, api.RegisterRequest{ID: "two", Quotas: []api.Quota{on(gpu0, 5*gib)}, For: forAlice}); !errors.Is(err, api.ErrQuotaExceeded) {
			t.Errorf("11 of 10 GiB: %v", err)
		}
		h.restart()
		u = h.Users(func(context.Context) []uint32 { return nil })
	}

	// She sees, renews and releases it; other users cannot.
	if s, err := u.Slice(as(1, alice), "one"); err != nil || s.Session || s.Cgroup == "" {
		t.Errorf("%+v, %v", s, err)
	}
	expect.ErrorIs(t, must.Err(u.Slice(as(1, bob), "one")), api.ErrNotFound, "bob sees it")
	must.Len(t, must.Get(u.Slices(as(1, bob)))(t), 0, "bob sees")
	hour := time.Hour
	if s, err := u.Renew(as(1, alice), "one", api.RenewRequest{TTL: &hour}); err != nil || s.Expires == nil {
		t.Errorf("%+v, %v", s, err)
	}
	expect.NoError(t, must.Err(u.Release(as(1, alice), "one", reply.Slice.Generation, true)))
}

func TestTheProcessesOfASliceForAUserComeToItsSocketOnTheHost(t *testing.T) {
	needs.Root(t)
	h, _ := newUsers(t, &fakeTruth{})
	_, reply, err := behalf(t, h, as(os.Getpid(), 0), api.RegisterRequest{ID: "one", Quotas: []api.Quota{on(gpu0, gib)}, For: &api.User{UID: alice}})
	must.Do(t, err)
	dir, err := os.Stat(reply.Dir)
	if err != nil || dir.Mode().Perm() != 0o711 {
		t.Errorf("%v, %v", dir.Mode(), err)
	}
	socket := must.Get(os.Stat(filepath.Join(reply.Dir, "bind", api.AttachSocketName)))(t)
	if st := socket.Sys().(*syscall.Stat_t); st.Uid != 7001 || st.Gid != 7002 || socket.Mode().Perm() != 0o600 {
		t.Errorf("%d:%d %v", st.Uid, st.Gid, socket.Mode())
	}
	expect.Error(t, must.Err(os.Stat(filepath.Join(reply.Dir, api.TokenName))), "it has a token, as if it could be joined")
}

// Its cgroup stays while one process follows another there.
func TestASliceForAUserEndsWithItsCgroupOrItsTime(t *testing.T) {
	needs.Root(t)
	h, _ := newUsers(t, &fakeTruth{})
	root := as(os.Getpid(), 0)
	group := newCgroup(t)
	begins := func(ttl time.Duration) {
		p := start(t, filepath.Join(h.options.RunDir, "to-one"), group)
		must.Get(h.Register(root, api.RegisterRequest{ID: "one", PID: p.pid(), UID: 7001, GID: 7002, TTL: ttl,
			Quotas: []api.Quota{on(gpu0, gib)}, For: &api.User{UID: alice}}))(t)
		p.kill()
	}
	begins(0)
	for range 2 {
		time.Sleep(100 * time.Millisecond) // long enough for an end that is wrong
		expect.NoError(t, must.Err(h.Slice(root, "one")), "it ended with its process")
		h.restart()
	}
	must.Do(t, os.Remove(group))
	h.gone("one")
	must.Do(t, os.Mkdir(group, 0o755))
	begins(time.Second)
	h.gone("one")
	begins(0)
	must.Get(h.Release(root, "one", 0, true))(t)
	h.given(gpu0, 0, 80*gib)
}

func TestRootAloneAsksForAUserAndForNothingThatIsTheOperatorsToGive(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	quotas := []api.Quota{on(gpu0, gib)}
	forAlice, root := &api.User{UID: alice}, as(os.Getpid(), 0)
	for name, c := range map[string]struct {
		asker   context.Context
		request api.RegisterRequest
		want    error
	}{
		"a member of the socket's group asks": {as(os.Getpid(), alice), api.RegisterRequest{Quotas: quotas, For: forAlice}, api.ErrForbidden},
		"nobody knows who asks":               {context.Background(), api.RegisterRequest{Quotas: quotas, For: forAlice}, api.ErrForbidden},
		"a user without a limit":              {root, api.RegisterRequest{Quotas: quotas, For: &api.User{UID: 9999}}, api.ErrForbidden},
		"a user with one by a group":          {root, api.RegisterRequest{Quotas: quotas, For: &api.User{UID: bob, Groups: []uint32{bob, student}}}, nil},
		"root":                                {root, api.RegisterRequest{Quotas: []api.Quota{on(gpu0, 20*gib)}, Tenant: "t", For: &api.User{}}, nil},
		"a tenant":                            {root, api.RegisterRequest{Quotas: quotas, Tenant: "t", For: forAlice}, api.ErrForbidden},
		"a pool":                              {root, api.RegisterRequest{Quotas: quotas, Pools: api.PoolNames{"p"}, For: forAlice}, api.ErrForbidden},
		"record mode":                         {root, api.RegisterRequest{Quotas: quotas, Mode: api.Record, For: forAlice}, api.ErrForbidden},
		"a session":                           {root, api.RegisterRequest{Quotas: quotas, Session: true, For: forAlice}, api.ErrBadRequest},
		"a container":                         {root, api.RegisterRequest{Quotas: quotas, Container: "c", For: forAlice}, api.ErrBadRequest},
	} {
		c.request.ID = "x"
		_, reply, err := behalf(t, h, c.asker, c.request)
		expect.ErrorIs(t, err, c.want, name)
		if err == nil {
			expect.NoError(t, must.Err(h.Release(context.Background(), "x", reply.Slice.Generation, true)))
		}
	}
	p := start(t, "/nonexistent", "")
	if _, err := u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "x", Quotas: quotas, Session: true, PID: p.pid(), For: &api.User{UID: bob}}); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("on the users' socket: %v", err)
	}
}
