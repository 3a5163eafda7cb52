// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/users"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	alice   = 5001
	bob     = 5002
	carol   = 5003
	student = 6001
)

func (h *host) Users(groups func(context.Context) []uint32) *users.Users {
	return users.New(h.Enforcer, users.Options{Limits: h.options.Users, Log: h.options.Log, Caller: h.options.Caller, Groups: groups})
}

// newUsers allows alice and the students sessions; bob and carol are students.
func newUsers(t *testing.T, truth *fakeTruth) (*host, *users.Users) {
	t.Helper()
	h := newHost(t, truth)
	h.options.Users = []session.Limit{
		{User: "5001", MaxVRAM: api.Share{Bytes: 10 * gib}, MaxSessions: 3},
		{User: "no-such-user-here", MaxVRAM: api.Share{Percent: 100}, MaxSessions: 9},
		{Group: "6001", MaxVRAM: api.Share{Percent: 10}, MaxSessions: 16}, // of 80 GiB
	}
	h.believe()
	t.Cleanup(enforcer.PretendOwned())
	return h, h.Users(func(ctx context.Context) []uint32 {
		if a, _ := ctx.Value(askerKey{}).(session.Asker); a.UID == alice || a.UID == bob || a.UID == carol {
			return []uint32{a.UID, student}
		}
		return []uint32{4000}
	})
}

func begin(t *testing.T, u *users.Users, uid uint32, id string, quotas ...api.Quota) (api.RegisterReply, error) {
	t.Helper()
	p := start(t, "/nonexistent", "")
	return u.Register(as(p.pid(), uid), api.RegisterRequest{ID: id, Quotas: quotas, Session: true, PID: p.pid(), UID: uid})
}

func TestFirstMatchingLimitAppliesToAUser(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	reply := must.Get(begin(t, u, alice, "a", on(gpu0, 6*gib)))(t)
	must.Equal(t, reply.Slice.ID, "u5001-a", "id")
	for name, c := range map[string]struct {
		uid   uint32
		quota api.Quota
		want  string
	}{
		"more than is left":         {alice, on(gpu0, 5*gib), "uid 5001's sessions may have 10GiB together (max_vram) and have 6GiB"},
		"all devices":               {alice, on(api.AllDevices, 5*gib), "10GiB together"},
		"a share":                   {bob, api.Quota{Device: gpu0, Percent: 11}, "8GiB together"},
		"a user in no group":        {4711, on(gpu0, gib), "uid 4711 may have no session on this host"},
		"root without a limit":      {0, on(gpu0, gib), "uid 0 may have no session on this host"},
		"what nobody could be told": {alice, on(gpu1, 11*gib), "and have 0"},
	} {
		_, err := begin(t, u, c.uid, "x", c.quota)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v: it does not say %q", name, err, c.want)
		}
	}
	for _, quota := range []api.Quota{on(gpu1, 10*gib), on(gpu0, 4*gib)} {
		expect.NoError(t, must.Err(begin(t, u, alice, "b"+quota.Device[len(quota.Device)-2:], quota)))
	}
	expect.ErrorSays(t, must.Err(begin(t, u, alice, "c", on(gpu1, 1))), api.ErrQuotaExceeded, "3 sessions", "a fourth session")
	for _, uid := range []uint32{bob, carol} {
		expect.NoError(t, must.Err(begin(t, u, uid, "g", api.Quota{Device: gpu0, Percent: 10})))
	}
	must.Get(u.Release(as(1, alice), "u5001-a", 0, true))(t)
	expect.NoError(t, must.Err(begin(t, u, alice, "a", on(gpu0, 6*gib))))
	expect.Equal(t, len(slicesOf(t, h)), 5, "slices")
}

func TestUserSeesTheRestOfOwnLimit(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	must.Get(begin(t, u, alice, "a", on(gpu0, 6*gib)))(t)
	must.Get(begin(t, u, bob, "b", on(gpu0, gib)))(t)
	_, _, err := behalf(t, h, as(os.Getpid(), 0), api.RegisterRequest{ID: "lease", Quotas: []api.Quota{on(gpu1, gib)}, For: &api.User{UID: alice}})
	must.Do(t, err)
	l := must.Get(u.Limits(as(1, alice), nil))(t)
	must.Equal(t, len(l.Devices), 2, "devices")
	hers := l
	if one, two := l.Devices[0], l.Devices[1]; l.UID != alice || l.MaxVRAM != "10GiB" || l.MaxSessions != 3 || l.Sessions != 2 ||
		one != (api.DeviceLimit{Device: gpu0, Index: one.Index, Name: one.Name, Limit: 10 * gib, Given: 6 * gib, Left: 4 * gib}) || two.Given != gib || two.Left != 9*gib {
		t.Errorf("%+v", l)
	}
	_, err = u.Limits(as(1, 4711), nil)
	expect.ErrorSays(t, err, api.ErrForbidden, "uid 4711 may have no session on this host")
	// On the control socket.
	if l := must.Get(h.Limits(as(1, 0), &api.User{UID: alice}))(t); !reflect.DeepEqual(l, hers) {
		t.Errorf("%+v", l)
	}
	if l := must.Get(h.Limits(as(1, 0), &api.User{UID: carol, Groups: []uint32{student}}))(t); l.MaxVRAM != "10%" || l.Devices[0].Left != 8*gib || l.Sessions != 0 {
		t.Errorf("%+v", l)
	}
	expect.ErrorIs(t, must.Err(h.Limits(as(1, 0), &api.User{UID: 4711})), api.ErrForbidden)
	if l := must.Get(h.Limits(as(1, 0), nil))(t); l.UID != 0 || l.MaxVRAM != "" || l.MaxSessions != 0 || l.Devices[0].Limit != 80*gib || l.Devices[0].Left != 73*gib {
		t.Errorf("%+v", l)
	}
}

func TestUserSeesCommandsOfOwnSessions(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	hers := must.Get(begin(t, u, alice, "a", on(gpu0, gib)))(t).Slice
	must.Get(begin(t, u, bob, "b", on(gpu0, gib)))(t)
	all := must.Get(u.SlicesWithCommands(as(1, alice)))(t)
	line := strings.TrimSpace(strings.ReplaceAll(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", hers.PID)))(t)), "\x00", " "))
	if len(all) != 1 || all[0].ID != hers.ID || line == "" || all[0].Command != line || all[0].UID == nil || *all[0].UID != alice {
		t.Errorf("%+v, want %q", all, line)
	}
	if all := must.Get(h.SlicesWithCommands(as(1, 0)))(t); len(all) != 2 || all[0].Command != line || all[1].Command == "" {
		t.Errorf("root is shown %+v", all)
	}
	must.Equal(t, must.Get(u.Slices(as(1, alice)))(t)[0].Command, "", "without being asked for")
}

func slicesOf(t *testing.T, h *host) []api.Slice {
	t.Helper()
	return must.Get(h.Slices(context.Background()))(t)
}

// A user's process may use devices that the user declared invisible, so they count too.
func TestAUsersSessionCountsOnAllDevicesThatItsQuotasAreOn(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	see := func(id string, quota api.Quota) error {
		p := start(t, "/nonexistent", "")
		return must.Err(u.Register(as(p.pid(), alice), api.RegisterRequest{ID: id, Quotas: []api.Quota{quota}, Visible: []string{gpu0}, Session: true, PID: p.pid(), UID: alice}))
	}
	must.Do(t, see("all", on(api.AllDevices, 6*gib)))
	expect.Equal(t, h.device(gpu1).Quotas, 6*gib, "bytes are given of the device that it says it does not see")
	for name, err := range map[string]error{
		"on a device that the other says it does not see": func() error { _, err := begin(t, u, alice, "b", on(gpu1, 5*gib)); return err }(),
		"on one that it says it sees":                     see("c", on(gpu0, 5*gib)),
	} {
		expect.ErrorSays(t, err, api.ErrQuotaExceeded, "and have 6GiB", name)
	}
	// A session without a quota on a device is not counted there.
	expect.NoError(t, see("one", on(gpu0, 4*gib)))
	expect.NoError(t, must.Err(begin(t, u, alice, "other", on(gpu1, 4*gib))))
}

func TestWithoutNVMLAUsersLimitCountsRequestedSizes(t *testing.T) {
	needs.Root(t)
	_, u := newUsers(t, nil)
	must.Get(begin(t, u, alice, "a", on(gpu0, 6*gib), on(gpu1, 2*gib)))(t)
	for want, quota := range map[string]api.Quota{
		"have 6GiB":      on(gpu1, 5*gib),
		"as sizes":       {Device: gpu0, Percent: 1},
		"max_vram (10%)": on(gpu0, gib),
	} {
		uid := uint32(alice)
		if strings.HasPrefix(want, "max_vram") {
			uid = bob
		}
		if _, err := begin(t, u, uid, "x", quota); !errors.Is(err, api.ErrQuotaExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	expect.NoError(t, must.Err(begin(t, u, alice, "b", on(gpu1, 4*gib))))
}

func TestUserCannotRequestOperatorSettings(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	stranger := start(t, "/nonexistent", "")
	for name, change := range map[string]func(*api.RegisterRequest){
		"is a container's":            func(r *api.RegisterRequest) { r.Session = false },
		"accounted to tenant t":       func(r *api.RegisterRequest) { r.Tenant = "t" },
		"the quota of pool p":         func(r *api.RegisterRequest) { r.Pools = api.PoolNames{"p"} },
		"limits would have no effect": func(r *api.RegisterRequest) { r.Mode = api.Record },
		"neither the caller":          func(r *api.RegisterRequest) { r.PID = stranger.pid() },
		"there is no device 17":       func(r *api.RegisterRequest) { r.Quotas[0].Device = "17" },
	} {
		p := start(t, "/nonexistent", "")
		r := api.RegisterRequest{ID: "x", Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: p.pid()}
		change(&r)
		expect.ErrorContains(t, must.Err(u.Register(as(p.pid(), alice), r)), name)
	}
	expect.ErrorIs(t, must.Err(u.Register(context.Background(), api.RegisterRequest{})), api.ErrForbidden, "an asker that the kernel does not know")
	// The kernel's uid counts, not the request's.
	p := start(t, "/nonexistent", "")
	reply := must.Get(u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "x", Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: p.pid(), UID: alice, GID: 0}))(t)
	info := must.Get(os.Stat(reply.Dir + "/" + api.TokenName))(t)
	expect.Equal(t, int(info.Sys().(*syscall.Stat_t).Uid), alice, "the token is of uid")
	expect.Equal(t, len(slicesOf(t, h)), 1, "slices")
}

// Each session costs files and events that others could use.
func TestAUserBeginsAndRenewsSessionsAtABoundedPace(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	p := start(t, "/nonexistent", "")
	again := func() error {
		_, err := u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: p.pid(), UID: alice})
		if err == nil {
			_, err = u.Release(as(p.pid(), alice), "u5001-a", 0, true)
		}
		return err
	}
	began, begun := time.Now(), 0
	var err error
	for ; err == nil && begun < 1000; begun++ {
		err = again()
	}
	if most := 65 + int(time.Since(began)/time.Second); begun < 64 || begun > most || !errors.Is(err, &api.Error{Code: api.CodeBusy}) || !strings.Contains(err.Error(), "accepted every 1s") {
		t.Errorf("%d sessions were begun, then: %v", begun, err)
	}
	began, begun, err = time.Now(), 1, nil
	expect.NoError(t, must.Err(begin(t, u, bob, "b", on(gpu0, gib))), "another user")
	for hour := time.Hour; err == nil && begun < 1000; begun++ {
		_, err = u.Renew(as(p.pid(), bob), "u5002-b", api.RenewRequest{TTL: &hour})
	}
	if most := 65 + int(time.Since(began)/time.Second); begun < 64 || begun > most || !errors.Is(err, &api.Error{Code: api.CodeBusy}) {
		t.Errorf("a session was renewed %d times, then: %v", begun, err)
	}
	expect.Equal(t, len(slicesOf(t, h)), 1, "slices")
}

// All sessions of a user share one limit of log lines and requests. Otherwise each new session would have a full limit.
func TestSessionsOfAUserHaveOneShare(t *testing.T) {
	needs.Root(t)
	h, _ := newUsers(t, &fakeTruth{})
	var log testhost.Output
	h.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	began := time.Now()
	h.restart()
	u := h.Users(func(context.Context) []uint32 { return []uint32{alice} })
	p := start(t, "/nonexistent", "")
	for range 20 {
		must.Get(u.Register(as(p.pid(), alice), api.RegisterRequest{ID: "a", Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: p.pid(), UID: alice}))(t)
		must.Get(u.Release(as(p.pid(), alice), "u5001-a", 0, true))(t)
	}
	h.options.Log = slog.New(slog.DiscardHandler)
	h.restart() // flushes the log of the former one
	lines := make(map[string]int)
	for line := range strings.Lines(log.String()) {
		if _, line, _ := strings.Cut(line, " msg="); strings.Contains(line, "slice=u5001-a") {
			message, _, _ := strings.Cut(line, "=")
			lines[message]++
		}
	}
	for message, n := range lines {
		if most := await.Paced(began, 5, 10*time.Second); n > most {
			t.Errorf("20 sessions of a user wrote %d lines of %s, want at most %d", n, message, most)
		}
	}
	expect.True(t, len(lines) > 0, "the log names the slice")
}

func TestUserSeesAndEndsOnlyOwnSessions(t *testing.T) {
	needs.Root(t)
	h, u := newUsers(t, &fakeTruth{})
	mine := must.Get(begin(t, u, alice, "mine", on(gpu0, gib)))(t)
	theirs := must.Get(begin(t, u, bob, "theirs", on(gpu0, gib)))(t)
	if all, err := u.Slices(as(1, alice)); err != nil || len(all) != 1 || all[0].ID != mine.Slice.ID {
		t.Errorf("%+v, %v", all, err)
	}
	hour := api.MinTTL * 3600
	other := func(ctx context.Context, id string) map[string]error {
		return map[string]error{
			"shown":    must.Err(u.Slice(ctx, id)),
			"renewed":  must.Err(u.Renew(ctx, id, api.RenewRequest{TTL: &hour})),
			"released": must.Err(u.Release(ctx, id, 0, true)),
		}
	}
	for _, id := range []string{theirs.Slice.ID, "none"} {
		for what, err := range other(as(1, alice), id) {
			expect.ErrorSays(t, err, api.ErrNotFound, "you have no session "+id, id, "is", what)
			expect.Equal(t, errors.Is(err, api.ErrForbidden), id == theirs.Slice.ID, id, "is", what, "the audit log says that it was refused")
		}
	}
	// May decides from the id alone, before the rest of the request is read.
	const nobodys = 4711
	for _, c := range []struct {
		uid          uint32
		id           string
		limited, may bool
	}{
		{alice, "", true, true}, {alice, mine.Slice.ID, true, true}, {alice, theirs.Slice.ID, true, false}, {alice, "none", true, false},
		{nobodys, "", false, false}, {nobodys, theirs.Slice.ID, false, false},
	} {
		if limited, err := u.May(as(1, c.uid), c.id); limited != c.limited || (err == nil) != c.may {
			t.Errorf("uid %d, session %q: a limit %v, %v", c.uid, c.id, limited, err)
		}
	}
	wrong := api.WithToken(as(1, alice), api.Token(strings.Repeat("0", 64)))
	for what, err := range other(wrong, theirs.Slice.ID) {
		expect.ErrorIs(t, err, api.ErrForbidden, "with a wrong token it is", what)
	}
	must.Equal(t, len(slicesOf(t, h)), 2, "slices")
	text := must.Get(os.ReadFile(theirs.Dir + "/" + api.TokenName))(t)
	_, token, err := api.ParseTokenFile(string(text))
	must.Do(t, err)
	shown := api.WithToken(as(1, alice), token)
	if limited, err := u.May(api.WithToken(as(1, nobodys), token), theirs.Slice.ID); limited || err != nil {
		t.Errorf("one without a limit: %v, %v", limited, err)
	}
	expect.Equal(t, must.Get(u.Slice(shown, theirs.Slice.ID))(t).ID, theirs.Slice.ID, "shown")
	expect.Equal(t, must.Get(u.Renew(shown, theirs.Slice.ID, api.RenewRequest{TTL: &hour}))(t).TTL, hour, "renewed")
	expect.NoError(t, must.Err(u.Release(shown, theirs.Slice.ID, 0, true)), "released")
	expect.NoError(t, must.Err(u.Release(as(1, alice), mine.Slice.ID, 0, true)), "one's own")
}

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

func TestSessionBegunByRootForAUserCountsInTheUsersLimit(t *testing.T) {
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
	expect.True(t, must.Get(u.Renew(as(1, alice), "one", api.RenewRequest{TTL: &hour}))(t).Expires != nil, "it has no end")
	expect.NoError(t, must.Err(u.Release(as(1, alice), "one", reply.Slice.Generation, true)))
}

func TestSliceForAUserIsReachedByItsHostSocket(t *testing.T) {
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
	h.wantGone("one")
	must.Do(t, os.Mkdir(group, 0o755))
	begins(time.Second)
	h.wantGone("one")
	begins(0)
	must.Get(h.Release(root, "one", 0, true))(t)
	h.wantGranted(gpu0, 0, 80*gib)
}

func TestOnlyRootRegistersForAUserWithoutOperatorSettings(t *testing.T) {
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
