// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// A user waits after too many wrong tokens, and the list of users is bounded.
func TestWrongTokensAreBoundedForEachUser(t *testing.T) {
	const alice, bob = 5001, 5002
	now := time.Now()
	g := WrongTokens()
	for n := range g.Burst {
		must.True(t, !g.Wait(now, alice), "after", n, "wrong tokens")
		must.Equal(t, g.Did(now, alice), (n == 0), "number", n, "is the first")
	}
	must.True(t, g.Wait(now, alice) && !g.Wait(now, bob), "a wrong token must limit only alice")
	expect.True(t, g.Wait(now.Add(g.Interval-time.Second), alice), "before the interval is over")
	now = now.Add(g.Interval)
	expect.True(t, !g.Wait(now, alice), "after it")
	g.Did(now, alice)
	expect.True(t, g.Wait(now, alice), "a second wrong token within the interval must wait")
	now = now.Add(time.Duration(g.Burst) * g.Interval)
	expect.True(t, !g.Wait(now, alice) && len(g.by) == 0, "the limiter of alice is not removed")
	for uid := range uint32(maxPaced) {
		g.Did(now, uid)
	}
	const late = 1 << 20
	if g.Wait(now, late) || g.Did(now, late) || g.Wait(now, late) || len(g.by) != maxPaced {
		t.Errorf("%d users have limiters, but another user is locked out", len(g.by))
	}
}

func TestATokenIsInItsFileAndNowhereElse(t *testing.T) {
	dir := t.TempDir()
	sum := must.Get(NewToken(dir, "s", -1, -1))(t)
	info := must.Get(os.Stat(filepath.Join(dir, api.TokenName)))(t)
	must.Equal(t, info.Mode().Perm(), 0o600)
	text := must.Get(os.ReadFile(filepath.Join(dir, api.TokenName)))(t)
	id, shown, err := api.ParseTokenFile(string(text))
	if err != nil || id != "s" || !sum.Is(shown) {
		t.Errorf("the file has session %s, but no valid token: %v", id, err)
	}
	for _, wrong := range []api.Token{"", "0", api.Token(strings.Repeat("0", 64))} {
		if sum.Is(wrong) || (Token{}).Is(wrong) {
			t.Errorf("%q is accepted", wrong)
		}
	}
	expect.True(t, !(Token{}).Is(shown), "a session without a token accepts one")
	expect.ErrorIs(t, must.Err(NewToken(dir, "s", -1, -1)), os.ErrExist, "a second token")
}

func TestALimitIsForAUserOrForAGroup(t *testing.T) {
	const both = 5001 // the number of a user and of a group
	limits := []Limit{{User: "no-such-user-here", MaxSessions: 1}, {Group: "5001", MaxSessions: 2}, {User: "5002", MaxSessions: 3}, {Group: "5003", MaxSessions: 4}}
	for name, c := range map[string]struct {
		uid    uint32
		groups []uint32
		want   int
	}{
		"a user with the group's number":     {uid: both},
		"a user in the group":                {uid: 5004, groups: []uint32{4000, both}, want: 2},
		"a user":                             {uid: 5002, want: 3},
		"a user in a group of that name":     {uid: 5004, groups: []uint32{5002}},
		"the first limit of several":         {uid: 5002, groups: []uint32{5003, both}, want: 2},
		"the limit of a user before a group": {uid: 5002, groups: []uint32{5003}, want: 3},
	} {
		l, err := For(limits, c.uid, c.groups)
		has := 0
		if l != nil {
			has = l.MaxSessions
		}
		if has != c.want || errors.Is(err, api.ErrForbidden) != (has == 0) {
			t.Errorf("%s: %d sessions, want %d", name, has, c.want)
		}
	}
}

func child(t *testing.T) (*process.Handle, *exec.Cmd) {
	t.Helper()
	c := exec.Command("sleep", "60")
	must.Start(t, c)
	p := must.Get(process.Open(c.Process.Pid))(t)
	return p, c
}

// dead returns a handle of an exited process, with the pid of another process.
func dead(t *testing.T, now int) *process.Handle {
	t.Helper()
	p, c := child(t)
	_ = c.Process.Kill()
	_ = c.Wait()
	p.PID = now
	return p
}

func TestAnExitedRequesterOwnsNothing(t *testing.T) {
	of, _ := child(t)
	own := must.Get(process.Open(os.Getpid()))(t)
	defer own.Close()
	expect.NoError(t, above(own, of.PID), "the parent")
	expect.ErrorIs(t, above(dead(t, os.Getpid()), of.PID), process.ErrDead, "an exited asker with the parent's pid")
	if err := above(of, os.Getpid()); err == nil || errors.Is(err, process.ErrDead) {
		t.Errorf("a child owns its parent: %v", err)
	}
}

func TestRequesterIsIdentifiedByStartTime(t *testing.T) {
	start := must.Get(process.StartTime(os.Getpid()))(t)
	for _, c := range []struct {
		asker Asker
		owns  bool
	}{
		{Asker{PID: os.Getpid(), Start: start}, true},
		{Asker{PID: os.Getpid(), Start: start + 1}, false},
		{Asker{PID: os.Getpid()}, false},
		{Asker{PID: 0, Start: start}, false},
		{Asker{PID: -1, Start: start}, false},
	} {
		if err := c.asker.Owns(os.Getpid()); (err == nil) != c.owns {
			t.Errorf("%+v owns: %v", c.asker, err)
		}
		if err := c.asker.MayName(os.Getpid()); (err == nil) != c.owns {
			t.Errorf("%+v names: %v", c.asker, err)
		}
	}
}

func TestSessionSocketIsAccessibleOnlyToItsUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	if err := os.Chmod(path, 0o666); err != nil { // regardless of the umask
		t.Fatal(err)
	}
	err := AllowUsers(path, []uint32{5002, 5001, 5002})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("requires a file system with access control lists")
	}
	must.Do(t, err)
	// The mode's group bits are the mask of the named users.
	expect.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o660)
	if list := accessList([]uint32{5001}); len(list) != 4+5*8 || list[len(list)-6] != 0 || list[4+2*8+2] != 0 {
		t.Errorf("others, or the group, have access: %v", list)
	}
}
