// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// sharedHost uses configs/shared.toml with adapted paths and groups.
func sharedHost(t *testing.T) *usersHost {
	t.Helper()
	h := newUsersHost(t)
	h.Stop(unix.SIGTERM)
	text := must.Get(os.ReadFile("../../configs/shared.toml"))(h.T)
	run := filepath.Join(h.Dir, "run")
	adapted := strings.NewReplacer(
		"[runtime]\n", fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\n[runtime]\nruntimes = [%q]\n",
			h.Socket(), run, filepath.Join(h.Dir, "state"), filepath.Join(h.Bin, api.LibraryName), h.runc),
		`"/var/log/gpuslice/audit.jsonl"`, fmt.Sprintf("%q\n[sessions]\nsocket = %q", h.audit(), h.users()),
		`"research"`, fmt.Sprintf(`"%d"`, somebody), `"students"`, fmt.Sprintf(`"%d"`, nobody),
	).Replace(string(text))
	h.Must(os.WriteFile(h.Config(), []byte(adapted), 0o644))
	h.Start()
	return h
}

func (h *usersHost) audit() string { return filepath.Join(h.Dir, "audit.jsonl") }

func TestSharedHostConfigurationKeepsItsPromises(t *testing.T) {
	h := sharedHost(t)
	d := h.device()
	expect.Equal(t, d.Reserve, gib, "reserved")
	contains := func(what, said, want string) {
		t.Helper()
		expect.Contains(t, said, want, what)
	}
	sleep := func(annotations map[string]string) *container {
		return h.newContainer(annotations, "/bin/sleep", "600")
	}
	of := func(vram, tenant string) map[string]string {
		return map[string]string{"gpuslice.vram": vram, "gpuslice.tenant": tenant}
	}

	contains("without a quota", sleep(nil).refused(), "gpuslice.vram")
	contains("more than half of a device", sleep(of("51%", "research")).refused(), "(max_vram)")
	contains("more than the bound of slices without a tenant", sleep(map[string]string{"gpuslice.vram": "26%"}).refused(), "slices without a tenant together have")
	contains("more than an unknown tenant has", sleep(of("26%", "made-up")).refused(), "tenant made-up has")
	contains("longer than a day", sleep(map[string]string{"gpuslice.vram": "4G", "gpuslice.ttl": "25h"}).refused(), "up to 24h")
	research := sleep(of("50%", "research"))
	research.run()
	contains("more than the tenant has", sleep(of("26%", "research")).refused(), "tenant research has")
	expect.Equal(t, must.Get(h.Client.Slice(t.Context(), research.id))(t).TTL, 24*time.Hour)

	other := sleep(map[string]string{"gpuslice.vram": "8G"})
	other.run()
	honest := other.hog(gib)
	hidden := other.hide(16 * gib)
	h.Eventually("the process with hidden memory is killed", h.dead(hidden))
	expect.True(t, !h.dead(honest)() && !h.dead(hog{pid: other.pid()})(), "another process of the slice was killed, too")

	_, _ = h.session("8G", 2*gib) // as a student
	contains("more than a student has", fails(t, h, nobody, "1G"), "(max_vram)")
	contains("more than a researcher has", fails(t, h, somebody, "26%"), "(max_vram)")
	contains("a user in no group", fails(t, h, somebody-1, "1G"), "may have no session on this host")

	h.Eventually("all that was refused is in the audit log", func() bool {
		text := must.Get(os.ReadFile(h.audit()))(h.T)
		refused := make(map[string]int)
		for line := range strings.Lines(string(text)) {
			var e audit.Entry
			if !strings.HasSuffix(line, "\n") {
				break // it is being written
			}
			h.Must(json.Unmarshal([]byte(line), &e))
			if e.Kind == audit.KindRequest && e.Result == audit.Refused && e.UID != nil {
				refused[fmt.Sprint(*e.UID)]++
			}
		}
		return refused["0"] >= 5 && refused[fmt.Sprint(nobody)] >= 1 && refused[fmt.Sprint(somebody)] >= 1 && refused[fmt.Sprint(somebody-1)] >= 1
	})
}

func fails(t *testing.T, h *usersHost, uid uint32, vram string) string {
	t.Helper()
	out, code := output(h.as(uid, "run", "--vram", vram, "--", "true"))
	expect.True(t, code != 0, "uid", uid, "has", vram)
	return out
}
