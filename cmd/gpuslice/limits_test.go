// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/test/expect"
)

// limitsServer returns root's limits to root and without a user, and refuses all other users.
type limitsServer struct {
	server.Service
	root api.UserLimits
}

func (b limitsServer) Limits(_ context.Context, who *api.User) (api.UserLimits, error) {
	if who == nil || who.UID == 0 {
		return b.root, nil
	}
	return api.UserLimits{}, api.Errorf(api.CodeForbidden, "uid %d may have no session on this host", who.UID)
}

func TestLimitsAreListedByDevice(t *testing.T) {
	known := api.UserLimits{UID: 5001, MaxVRAM: "50%", MaxSessions: 4, Sessions: 1, MaxTTL: 12 * time.Hour, Devices: []api.DeviceLimit{
		{Device: cardA, Index: 0, Name: "H100", Limit: 40 << 30, Given: 8 << 30, Left: 32 << 30},
		{Device: cardB, Index: 1, Name: "H100", Limit: 40 << 30, Left: 3 << 30},
	}}
	socket := listen(t, limitsServer{root: known})
	for args, want := range map[string]string{
		"": `INDEX  DEVICE        NAME  LIMIT  GIVEN  LEFT   SESSIONS  TTL
0      GPU-1b2c3d4e  H100  40GiB  8GiB   32GiB  1 of 4    12h
1      GPU-9b2c3d4e  H100  40GiB  0B     3GiB   1 of 4    12h
`,
		"--user root -q --sort left":                       cardB + "\n" + cardA + "\n",
		"--user 0 --format {{.Left}} --filter device=1":    "3GiB\n",
		"--format {{.UID}} --filter device=0:GPU-1b2c3d4e": "5001\n",
	} {
		if out, said, code := cliRun(append([]string{"--socket", socket, "limits"}, strings.Fields(args)...)...); code != 0 || out != want {
			t.Errorf("%s: %d, %s\n%s", args, code, said, out)
		}
	}
	out, _, _ := cliRun("--socket", socket, "limits", "--json")
	expect.Contains(t, out, `"left": 3221225472`)
	expect.Equal(t, strings.Count(out, `"uid": 5001`), 1, out)
	for args, want := range map[string]string{
		"--user no-such-user-here": `--user "no-such-user-here": the host's user database does not know it`,
		"--user=":                  `--user "": `,
	} {
		if _, said, code := cliRun(append([]string{"--socket", socket, "limits"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(said, want) {
			t.Errorf("%s: %d, %s", args, code, said)
		}
	}
	if _, said, code := cliRun("--socket", socket, "limits", "--user", "1"); code != 1 || said != "uid 1 may have no session on this host" {
		t.Errorf("%d, %s", code, said)
	}
	unknown := listen(t, limitsServer{root: api.UserLimits{MaxVRAM: "4GiB"}})
	out, _, _ = cliRun("--socket", unknown, "limits")
	expect.Equal(t, out, "INDEX  DEVICE  NAME  LIMIT  GIVEN    LEFT     SESSIONS  TTL\n-      any     -     4GiB   unknown  unknown  0         any\n")
}
