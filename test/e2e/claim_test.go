// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// claims adds to config.json the hooks that the CDI devices of claims add: one per pool.
func (c *container) claims(pools ...string) *container {
	c.T.Helper()
	hooks := make(map[string]any)
	for _, stage := range []string{"prestart", "poststop"} {
		var list []any
		for _, pool := range pools {
			list = append(list, map[string]any{
				"path": filepath.Join(c.Bin, "gpuslice-hook"),
				"args": []string{"gpuslice-hook", "--config", c.Config(), "--pool", pool, "--tenant", "team", stage},
				"env":  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			})
		}
		hooks[stage] = list
	}
	c.configure(func(config map[string]any) { config["hooks"] = hooks })
	return c
}

// plain runs runc without gpuslice-runtime, as on nodes without a RuntimeClass for it.
func (c *container) plain(args ...string) *exec.Cmd {
	cmd := exec.Command("runc", append([]string{"--root", filepath.Join(c.Dir, "runc")}, args...)...)
	cmd.Env = c.Env()
	return cmd
}

func (c *container) hogOn(device int, bytes uint64) hog {
	c.T.Helper()
	return c.start("/usr/bin/env", "CUDA_VISIBLE_DEVICES="+strconv.Itoa(device), "/demo/cuda_hog", strconv.FormatUint(bytes, 10))
}

func TestAContainerWithClaimsOfTwoGPUsIsHeldToBoth(t *testing.T) {
	h := newHostOf(t, 2)
	devices := must.Get(h.Client.Devices(t.Context()))(h.T)
	uuid := make(map[int]string)
	for _, d := range devices {
		uuid[len(devices)-1-d.Index] = d.UUID // CUDA enumerates them in reverse
	}
	for device, bytes := range map[int]uint64{0: 4 * gib, 1: 2 * gib} {
		_, err := h.Client.CreatePool(t.Context(), fmt.Sprint("claim-", device), api.PoolRequest{
			Quotas: []api.Quota{{Device: uuid[device], Bytes: bytes}}, Tenant: "team", Label: "team/claim",
		})
		h.Must(err)
	}
	both := []string{"claim-0", "claim-1"}
	for name, start := range map[string]func(*container, ...string) *exec.Cmd{"runc": (*container).plain, "gpuslice-runtime": (*container).runtime} {
		c := h.newContainer(nil, "/bin/sleep", "600").claims(both...)
		must.Output(c.output(start(c, "run", "--detach", "--bundle", c.bundle, c.id)))(t, name)
		s := must.Get(h.Client.Slice(t.Context(), c.id))(h.T)
		if !slices.Equal(s.Pools, both) || s.Tenant != "team" || len(s.Devices) != 2 {
			t.Fatalf("%s: %+v", name, s)
		}
		must.Equal(t, c.hogOn(0, 3*gib).said, fmt.Sprintf("holds %d of %d", 3*gib, 4*gib), "it should see the claim's quota")
		must.Equal(t, c.hogOn(1, gib).said, fmt.Sprintf("holds %d of %d", gib, 2*gib), "it should see the other claim's quota")
		h.Stop(unix.SIGKILL)
		h.Start()
		must.True(t, c.hogOn(1, gib).refused(), "with its context there is room on device 1")
		must.True(t, c.hogOn(0, gib).refused(), "with its context there is room on device 0")
		for device, pool := range both {
			p := must.Get(h.Client.Pool(t.Context(), pool))(h.T)
			if len(p.Devices) != 1 || p.Devices[0].Device != uuid[device] || p.Devices[0].Used == 0 || p.Devices[0].Refusals == 0 {
				t.Errorf("%+v", p)
			}
		}
		must.Output(c.output(c.plain("delete", "--force", c.id)))(t)
	}
	for _, pool := range both {
		h.Eventually("the claim is given back", func() bool {
			_, err := h.Client.DeletePool(t.Context(), pool)
			return err == nil
		})
	}
	must.Len(t, h.Slices(), 0, "slices are left")
}

func TestAClaimCannotBeWidenedByTheContainer(t *testing.T) {
	h := newHostOf(t, 1)
	h.mustRun("pool", "create", "claim", "--vram", "4G", "--tenant", "team")
	h.mustRun("pool", "create", "rich", "--vram", "40G")
	for want, annotations := range map[string]map[string]string{
		`annotation gpuslice.pool="rich" is not accepted beside a resource claim`:    {"gpuslice.pool": "rich"},
		`annotation gpuslice.mode="record" is not accepted beside a resource claim`:  {"gpuslice.mode": "record"},
		`annotation gpuslice.elastic="true" is not accepted beside a resource claim`: {"gpuslice.elastic": "true"},
	} {
		c := h.newContainer(annotations, "/bin/true").claims("claim")
		if out, err := c.output(c.plain("run", "--bundle", c.bundle, c.id)); err == nil || !strings.Contains(strings.ReplaceAll(out, `\"`, `"`), want) {
			t.Errorf("%v: %s", err, out)
		}
	}
	c := h.newContainer(map[string]string{"gpuslice.vram": "80G", "cdi.k8s.io/x": "gpuslice.io/vram=rich"}, "/bin/sleep", "600").claims("claim")
	must.Output(c.output(c.plain("run", "--detach", "--bundle", c.bundle, c.id)))(t)
	c.mustHold(gib, 4*gib, "it should see the claim's quota")
	c.mustRefuse(4*gib, "there is no room")
	missing := h.newContainer(nil, "/bin/true").claims("claim", "gone")
	expect.Refused(missing.output(missing.plain("run", "--bundle", missing.bundle, missing.id)))(t, "there is no pool gone")
	twice := h.newContainer(nil, "/bin/true").claims("claim", "rich")
	expect.Refused(twice.output(twice.plain("run", "--bundle", twice.bundle, twice.id)))(t, "pools claim and rich both have a quota on")
	must.Len(t, h.Slices(), 1, "slices are left")
}
