// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func hostOf(t *testing.T, users map[string]uint32, subuid string) *HostUsers {
	t.Helper()
	file := filepath.Join(t.TempDir(), "subuid")
	must.Do(t, os.WriteFile(file, []byte(subuid), 0o600))
	return &HostUsers{Subuid: file, lookUp: func(name string) (uint32, error) {
		for user, uid := range users {
			if name == user || name == strconv.Itoa(int(uid)) {
				return uid, nil
			}
		}
		if name == "7777" {
			return 0, errors.New("connection refused")
		}
		n, _ := strconv.Atoi(name)
		return 0, user.UnknownUserIdError(n)
	}}
}

func TestSubordinateUIDCountsForItsOwner(t *testing.T) {
	users := map[string]uint32{"alice": 1000, "bob": 1001, "carol": 2_000_000_000, "dave": 300_007}
	h := hostOf(t, users, "alice:100000:65536\n1001:200000:65536\n\nmalformed\ngone:400000:10\nroot:1000:1\nalice:300000:10\nbob:1001:1\n")
	for name, c := range map[string]struct {
		uid, counts uint32
		refusal     string
	}{
		"a user": {1000, 1000, ""},
		"a user of a directory service, above all ranges": {2_000_000_000, 2_000_000_000, ""},
		"a user in a range of their own":                  {1001, 1001, ""},
		"the first subordinate one":                       {100_000, 1000, "is a subordinate uid of alice"},
		"the last one":                                    {165_535, 1000, "is a subordinate uid of alice"},
		"the one after it":                                {165_536, NoUser, "does not know it"},
		"one of an owner by number":                       {200_007, 1001, "is a subordinate uid of 1001"},
		"one of an unknown owner":                         {400_000, NoUser, "is a subordinate uid of gone"},
		"a user with a subordinate uid of another":        {300_007, 1000, "is a subordinate uid of alice"},
		"a uid that is in no file":                        {5001, NoUser, "does not know it"},
		"a uid that the database cannot look up now":      {7777, NoUser, "connection refused: try again"},
	} {
		counts, err := h.Of(context.Background(), c.uid)
		if counts != c.counts || (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %d, %v", name, counts, err)
		}
	}
}

func TestHungUserDatabaseIsAbandonedAtTheTimeout(t *testing.T) {
	h := hostOf(t, nil, "")
	answers := make(chan struct{})
	h.lookUp = func(string) (uint32, error) { <-answers; return 1000, nil }
	at := func(uid uint32) error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		counts, err := h.Of(ctx, uid)
		var refusal *api.Error
		if counts != NoUser || !errors.As(err, &refusal) || refusal.Code != api.CodeBusy {
			return fmt.Errorf("uid %d: %d, %w", uid, counts, err)
		}
		return nil
	}
	for uid := range uint32(2 * maxLookUps) {
		expect.NoError(t, at(uid+1))
	}
	if h.mu.Lock(); h.asking != maxLookUps {
		t.Errorf("%d concurrent look-ups", h.asking)
	}
	h.mu.Unlock()
	close(answers)
	// The first look-up of uid 1 has completed, and there is no second one.
	if counts, err := h.Of(context.Background(), 1); counts != 1 || err != nil {
		t.Errorf("%d, %v", counts, err)
	}
}

func TestCacheOfUsersIsBounded(t *testing.T) {
	h := hostOf(t, nil, "alice:100000:65536\n")
	asked := make(map[string]int)
	h.lookUp = func(name string) (uint32, error) { asked[name]++; return 1000, nil }
	for uid := range uint32(5000) {
		_, _ = h.Of(context.Background(), 100_000+uid)
	}
	if asked["alice"] != 1 || len(asked) != 1 {
		t.Errorf("%v look-ups for the subordinate uids of one user", asked)
	}
	for uid := range uint32(2 * maxRemembered) {
		_, _ = h.Of(context.Background(), uid)
	}
	expect.True(t, len(h.found) <= maxRemembered, len(h.found), "answers")
}
