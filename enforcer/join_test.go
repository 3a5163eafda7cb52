// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/metrics"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

type askerKey struct{}

// as returns the context of a request from this process, as the kernel would identify it.
func as(pid int, uid uint32) context.Context { return askedBy(asker(pid, uid)) }

func askedBy(who session.Asker) context.Context {
	return context.WithValue(context.Background(), askerKey{}, who)
}

func asker(pid int, uid uint32) session.Asker {
	start, _ := process.StartTime(pid) // an exited one has none
	return session.Asker{PID: pid, Start: start, UID: uid}
}

// believe makes the enforcer identify callers by the contexts.
func (h *host) believe() {
	h.options.Caller = func(ctx context.Context) (session.Asker, bool) {
		a, known := ctx.Value(askerKey{}).(session.Asker)
		return a, known
	}
	h.restart()
}

// tokenSession registers a session of this user with its own token, requested by its first process.
func (h *host) tokenSession(id string, quotas ...api.Quota) (*proc, api.RegisterReply, api.Token) {
	h.t.Helper()
	link := filepath.Join(h.options.RunDir, "to-"+id)
	p := start(h.t, link, "")
	reply := must.Get(h.Register(as(p.pid(), uint32(os.Geteuid())), api.RegisterRequest{
		ID: id, Quotas: quotas, Session: true, PID: p.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}))(h.t)
	lead(h.t, link, reply)
	return p, reply, tokenOf(h.t, reply)
}

func tokenOf(t *testing.T, reply api.RegisterReply) api.Token {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(reply.Dir, api.TokenName)))(t)
	named, token, err := api.ParseTokenFile(string(text))
	if err != nil || named != reply.Slice.ID {
		t.Fatalf("%q, %v", named, err)
	}
	return token
}

func (h *host) join(p *proc, id string, token api.Token) error {
	return must.Err(h.Join(api.WithToken(as(p.pid(), uint32(os.Geteuid())), token), id, api.JoinRequest{PID: p.pid()}))
}

func TestATokenLetsAProcessJoinThatDoesNotDescendFromTheSession(t *testing.T) {
	h := newHost(t, nil)
	h.believe()
	_, reply, token := h.tokenSession("s", on(gpu0, 4*gib))
	bind := filepath.Join(reply.Dir, "bind")
	other := start(t, bind, "")
	other.expect("status 1", "attach") // not a member
	must.Do(t, h.join(other, "s", token))
	other.uses()
	other.must("charge 0 %d", 3*gib)
	other.expect("refused", "charge 0 %d", 2*gib)
	expect.ErrorContains(t, h.join(other, "s", token), "in session s already", "it joins twice")
	if s := h.see("s"); s.ProcessCount != 1 || s.Devices[0].Used != 3*gib {
		t.Fatalf("%+v", s)
	}
	// Its exit releases what it held, and a new process with its pid is no member.
	other.kill()
	eventually(t, "its memory is released", func() bool { return h.see("s").Devices[0].Used == 0 })
}

func TestJoinedProcessIsKnownAfterARestart(t *testing.T) {
	needs.Root(t)
	h := newHost(t, nil)
	h.believe()
	_, reply, token := h.tokenSession("s", on(gpu0, 4*gib))
	first, second := start(t, filepath.Join(reply.Dir, "bind"), ""), start(t, filepath.Join(reply.Dir, "bind"), "")
	for _, p := range []*proc{first, second} {
		must.Do(t, h.join(p, "s", token))
		p.must("attach")
	}
	first.must("device %s %d", hex0, 80*gib)
	first.must("charge 0 %d", gib)
	second.must("charge 0 %d", 2*gib)
	h.stop()
	second.kill()
	h.start()
	eventually(t, "the living are known, the dead settled", func() bool {
		s := h.see("s")
		return s.ProcessCount == 1 && s.Devices[0].Used == gib
	})
	first.tell("exec")
	first.must("attach") // it is still a member
	// The session still accepts the token: its hash was stored.
	must.Do(t, h.join(start(t, filepath.Join(reply.Dir, "bind"), ""), "s", token))
}

func TestWrongTokenIsRefusedAndCounted(t *testing.T) {
	defer enforcer.PretendOwned()()
	h := newHost(t, nil)
	h.believe()
	count := &tokens{Metrics: metrics.New(h, slog.New(slog.DiscardHandler)), results: make(map[string]int)}
	h.CountWith(count)
	_, _, token := h.tokenSession("s", on(gpu0, gib))
	_, _, others := h.tokenSession("other", on(gpu0, gib))
	p := start(t, "/nonexistent", "")
	wrong := []api.Token{"", "x", others, api.Token(strings.Repeat("0", 64)), token[:62], token + "00", api.Token(strings.ToUpper(string(token)) + " ")}
	for _, shown := range wrong {
		if err := h.join(p, "s", shown); !errors.Is(err, api.ErrForbidden) || strings.Contains(err.Error(), string(token)) {
			t.Errorf("%q: %v", string(shown), err)
		}
	}
	expect.ErrorIs(t, h.join(p, "none", token), api.ErrForbidden, "of a session that is not there")
	expect.Equal(t, count.of("wrong_token"), len(wrong)+1, count.results)
	// Now that user's tokens are refused unread for a while, and other users' are not.
	for range 20 {
		_ = h.join(p, "s", others)
	}
	if err := h.join(p, "s", token); !errors.Is(err, &api.Error{Code: api.CodeBusy}) {
		t.Errorf("after too many: %v", err)
	}
	if count.of("wrong_token") != 10 || count.of("limited") == 0 || count.of("ok") != 0 {
		t.Errorf("%+v", count.results)
	}
	ctx := api.WithToken(as(p.pid(), 4242), token)
	expect.NoError(t, must.Err(h.Join(ctx, "s", api.JoinRequest{PID: p.pid()})), "another user is kept out by that")
}

func TestAStrangersProcessIsNotJoined(t *testing.T) {
	h := newHost(t, nil)
	h.believe()
	first, _, token := h.tokenSession("s", on(gpu0, gib))
	victim, asks := start(t, "/nonexistent", ""), start(t, "/nonexistent", "")
	ctx := api.WithToken(as(asks.pid(), uint32(os.Geteuid())), token)
	expect.ErrorSays(t, must.Err(h.Join(ctx, "s", api.JoinRequest{PID: victim.pid()})), api.ErrBadRequest, "descendant")
	// The process that asked has exited, and the victim has its pid.
	dead := asker(victim.pid(), uint32(os.Geteuid()))
	dead.Start--
	ctx = api.WithToken(askedBy(dead), token)
	expect.ErrorSays(t, must.Err(h.Join(ctx, "s", api.JoinRequest{PID: victim.pid()})), api.ErrBadRequest, "is dead")
	first.kill()
	h.wantGone("s")
	expect.ErrorIs(t, h.join(asks, "s", token), api.ErrForbidden, "a token of a session that is over")
}

func TestAContainersProcessDoesNotLeaveItsSliceByJoining(t *testing.T) {
	cgroup := newCgroup(t)
	h := newHost(t, nil)
	h.believe()
	_, _, token := h.tokenSession("s", on(gpu0, 40*gib))
	p := start(t, "/nonexistent", cgroup)
	must.Get(h.Register(as(os.Getpid(), 0), api.RegisterRequest{ID: "c", PID: p.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	expect.ErrorSays(t, h.join(p, "s", token), api.ErrBadRequest, "in slice c of a container")
}

func TestAnEnforcerThatOnlyItsOwnProcessAsksMakesNoToken(t *testing.T) {
	h := newHost(t, nil)
	_, reply := h.session("s", on(gpu0, gib))
	expect.ErrorIs(t, must.Err(os.Lstat(filepath.Join(reply.Dir, api.TokenName))), os.ErrNotExist, "there is a token")
	zero := api.WithToken(context.Background(), api.Token(strings.Repeat("00", 32)))
	expect.ErrorIs(t, must.Err(h.Join(zero, "s", api.JoinRequest{PID: os.Getpid()})), api.ErrForbidden, "it is joined without one")
}

// The secret is in the session's file and nowhere else: not in the log, the store, an event, an answer.
func TestATokenIsWrittenInItsFileOnly(t *testing.T) {
	h := newHost(t, nil)
	var log testhost.Output
	h.options.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h.believe()
	p, reply, token := h.tokenSession("s", on(gpu0, gib))
	info := must.Get(os.Stat(filepath.Join(reply.Dir, api.TokenName)))(t)
	must.Equal(t, info.Mode().Perm(), 0o600)
	joins := start(t, "/nonexistent", "")
	_ = h.join(joins, "s", token[:60])
	must.Do(t, h.join(joins, "s", token))
	events := must.Get(h.Events(context.Background(), "", 0, false))(t)
	said := slog.New(slog.NewTextHandler(&log, nil))
	said.Info("shown by mistake", "token", token, "reply", reply, "events", events, "slice", h.see("s"))
	secret, _ := token.Bytes()
	for what, text := range map[string]string{"log": log.String(), "command line": command(t, p.pid(), "cmdline"), "environment": command(t, p.pid(), "environ")} {
		if strings.Contains(text, string(token)) || strings.Contains(text, string(token[:60])) || strings.Contains(text, string(secret)) {
			t.Errorf("the %s has it", what)
		}
	}
	h.stop()
	err := filepath.WalkDir(filepath.Dir(h.options.StateDir), func(path string, _ os.DirEntry, _ error) error {
		if filepath.Base(path) == api.TokenName {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && (bytes.Contains(b, []byte(token)) || bytes.Contains(b, secret)) {
			t.Errorf("%s has it", path)
		}
		return nil
	})
	must.Do(t, err)
}

func command(t *testing.T, pid int, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name)))(t)
	return string(text)
}

type tokens struct {
	*metrics.Metrics
	mu      sync.Mutex
	results map[string]int
}

func (c *tokens) Joined(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[result]++
}

func (c *tokens) of(result string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.results[result]
}

// A process either has joined the session or not, whenever the enforcer is killed; a repeated request settles it.
func TestAnEnforcerKilledWhileAProcessJoinsComesBack(t *testing.T) {
	d := newDaemon(t)
	for _, point := range []string{"join.stored", "join.done"} {
		d.start(point)
		id := "s-" + point[len("join."):]
		link := filepath.Join(d.dir, id)
		first := start(t, link, "")
		reply := must.Get(d.Register(context.Background(), api.RegisterRequest{ID: id, Session: true, PID: first.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
		text := must.Get(os.ReadFile(filepath.Join(reply.Dir, api.TokenName)))(t)
		_, token, err := api.ParseTokenFile(string(text))
		must.Do(t, err)
		other := start(t, filepath.Join(reply.Dir, "bind"), "")
		ctx := api.WithToken(context.Background(), token)
		expect.Error(t, must.Err(d.Join(ctx, id, api.JoinRequest{PID: other.pid()})), point, "was not passed")
		d.died(point)
		d.start("")
		if _, err := d.Join(ctx, id, api.JoinRequest{PID: other.pid()}); err != nil && !strings.Contains(err.Error(), "already") {
			t.Errorf("after a death at %s: %v\n%s", point, err, d.log())
		}
		other.uses()
		other.must("charge 0 %d", gib)
		other.expect("refused", "charge 0 1")
		must.Do(t, must.Err(d.Release(context.Background(), id, 0, true)))
		d.kill()
		first.kill()
		other.kill()
	}
}

// withRoots starts a process of an ordinary user, from which one of root's descends: as after `sudo`, or an administrator's `su` in the
// user's terminal.
func withRoots(t *testing.T, uid uint32) (users, roots int) {
	t.Helper()
	needs.Root(t)
	cmd := exec.Command("sh", "-c", fmt.Sprintf("sleep 1000 & echo $!; exec setpriv --reuid=%d --clear-groups sleep 1000", uid))
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(roots, syscall.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	must.Get(fmt.Fscan(out, &roots))(t)
	users = cmd.Process.Pid
	eventually(t, "it is the user's", func() bool { return process.OwnedBy(users, uid) })
	return users, roots
}

func TestAProcessWithAnothersRightsIsNotInAUsersSession(t *testing.T) {
	const uid = 12345
	h := newHost(t, nil)
	h.believe()
	users, roots := withRoots(t, uid)
	begin := func(pid int) error {
		_, err := h.Register(as(users, uid), api.RegisterRequest{
			ID: fmt.Sprint("s", pid), Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: pid, UID: uid, GID: uid, TTL: time.Second})
		return err
	}
	expect.ErrorContains(t, begin(roots), "another user's rights")
	expect.NoError(t, begin(users))
}

func TestSessionsEndSignalsOnlyItsProcesses(t *testing.T) {
	const uid = 12345
	h, c := newTimedHost(t)
	users, roots := withRoots(t, uid)
	must.Get(h.Register(context.Background(), api.RegisterRequest{
		ID: "s", Quotas: []api.Quota{on(gpu0, gib)}, Session: true, PID: users, UID: uid, GID: uid, TTL: time.Second}))(t)
	c.pass(time.Second)
	h.expired("s")
	eventually(t, "the session is over", func() bool {
		c.pass(time.Minute)
		_, err := h.Slice(context.Background(), "s")
		return errors.Is(err, api.ErrNotFound)
	})
	expect.True(t, !process.OwnedBy(users, uid) || !process.Exists(users), "the user's process still runs")
	expect.True(t, process.Exists(roots) && process.OwnedBy(roots, 0), "root's process was ended")
}

// A hook in a container with the host's control socket names processes by the pids of its own namespace, which other processes have on the
// host.
func TestPIDIsReadInTheCallersNamespace(t *testing.T) {
	cgroup := newCgroup(t)
	h := newHost(t, nil)
	h.believe()
	victim := start(t, "", cgroup)
	nested := inside(t, cgroup, "sleep", "1000")
	for name, r := range map[string]api.RegisterRequest{
		"a container": {ID: "c", Container: "c", PID: victim.pid(), Quotas: []api.Quota{on(gpu0, gib)}},
		"a session":   {ID: "s", Session: true, PID: victim.pid(), Quotas: []api.Quota{on(gpu0, gib)}},
	} {
		_, err := h.Register(as(nested.Process.Pid, 0), r)
		expect.ErrorSays(t, err, api.ErrBadRequest, "in another pid namespace than the enforcer", name)
	}
	_, _, token := h.tokenSession("t", on(gpu0, gib))
	_, err := h.Join(api.WithToken(as(nested.Process.Pid, 0), token), "t", api.JoinRequest{PID: victim.pid()})
	expect.ErrorSays(t, err, api.ErrBadRequest, "in another pid namespace than the enforcer", "a process that joins")
}
