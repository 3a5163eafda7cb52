// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// holderHost is a host with remapping and a separate cgroup for the moved memory.
type holderHost struct {
	*host
	name string // of the top-level cgroup
}

func newHolderHost(t *testing.T, env ...string) *holderHost {
	t.Helper()
	needs.Root(t)
	name := fmt.Sprintf("gpuslice-e2e-host-%d-%d", os.Getpid(), time.Now().UnixNano())
	h := &holderHost{name: name}
	t.Cleanup(func() { // runs after the enforcer has exited
		if h.host == nil {
			return
		}
		for _, dir := range h.Cgroups(name) {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for _, word := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			h.Eventually("the holder's cgroup is empty", func() bool { return os.Remove(dir) == nil || os.IsNotExist(syscall.Rmdir(dir)) })
		}
	})
	h.host = newHostBy(t, api.Intercept, fmt.Sprintf("%shost_cgroup = %q\n", quickTurns, "/"+name), append(env, "FAKECUDA_MEMORY=3G")...)
	return h
}

// charges reports whether the kernel can charge memory here: v2 has no memory controller if v1 uses it.
func (h *holderHost) charges() bool { return h.file("usage_in_bytes", "current") != "" }

// file returns a file of the memory controller in the holder's cgroup, by its v1 or v2 name, or "".
func (h *holderHost) file(v1, v2 string) string {
	for _, dir := range h.Cgroups(h.name) {
		for _, name := range []string{"memory." + v1, "memory." + v2} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return filepath.Join(dir, name)
			}
		}
	}
	return ""
}

func number(t testing.TB, file string) uint64 {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	return must.Get(strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64))(t)
}

func (h *holderHost) charged() uint64 { return number(h.T, h.file("usage_in_bytes", "current")) }

// holder returns the holder's pid, or 0.
func (h *holderHost) holder() int {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(h.file("usage_in_bytes", "current")), "cgroup.procs"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// shrinkContexts reduces the size of contexts, and limits the container's own memory; 0 is unlimited.
func (c *container) shrinkContexts(bytes uint64) {
	c.T.Helper()
	c.configure(func(config map[string]any) {
		process := config["process"].(map[string]any)
		process["env"] = append(process["env"].([]any), "FAKECUDA_CONTEXT=64M")
		if bytes > 0 {
			config["linux"].(map[string]any)["resources"].(map[string]any)["memory"] = map[string]uint64{"limit": bytes}
		}
	})
}

// limited starts an elastic container, with its own memory limited if charges allows it.
func (h *holderHost) limited(quota string, bytes uint64) *container {
	h.T.Helper()
	c := h.newContainer(map[string]string{"gpuslice.vram": quota, "gpuslice.elastic": "true"}, "/bin/sleep", "600")
	if !h.charges() {
		bytes = 0
	}
	c.shrinkContexts(bytes)
	c.run()
	return c
}

// ownCgroup returns the file with the memory usage of the container's own cgroup.
func (c *container) ownCgroup() string {
	c.T.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.pid())))(c.T)
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, file := range []string{"/sys/fs/cgroup/memory" + parts[2] + "/memory.usage_in_bytes", "/sys/fs/cgroup" + parts[2] + "/memory.current"} {
			if _, err := os.Stat(file); err == nil && (parts[1] == "memory" || parts[1] == "") {
				return file
			}
		}
	}
	c.T.Fatalf("no memory controller in %s", text)
	return ""
}

// Containers have 2500 MiB of a 3 GiB card. The rest is too small for a context, so each turn moves everything.
const ownLimit = 192 * mib

func TestAContainersLimitOfMemoryDoesNotKeepItOnTheCard(t *testing.T) {
	h := newHolderHost(t)
	c, b := h.limited("2500M", ownLimit), h.limited("2500M", 0)
	w := c.works(gib)
	if !h.charges() { // logged, and the driver moves it
		b.works(gib).goesOn()
		w.goesOn()
		expect.Contains(t, h.Log.String(), "has no memory controller", "it is not said that the cgroup has no memory controller")
		return
	}
	before := h.charged()
	expect.True(t, before <= 32*mib, "the holder takes", before, "bytes")
	other := b.works(gib / 2)
	for range 3 {
		w.goesOn()
		other.goesOn()
	}
	must.True(t, h.evictions(c.id) >= 2, "it was evicted less than twice")
	expect.True(t, !strings.Contains(h.Log.String(), "left to the driver"), "the driver has moved it")
	// The holder keeps both reservations for the next turn.
	if now := h.charged() - before; now < gib+gib/2 || now > gib+gib/2+64*mib {
		t.Errorf("the holder's cgroup bears %d bytes", now)
	}
	if own := number(t, c.ownCgroup()); own > ownLimit {
		t.Errorf("the container's own cgroup bears %d bytes", own)
	}
	must.Output(c.output(c.runtime("delete", "--force", c.id)))(t)
	h.Eventually("the container's memory is released", func() bool { return h.charged()-before < gib/2+64*mib })
	other.goesOn()
}

// A holder can be killed at any step: nothing is lost, and the next turn starts another.
func TestAHolderKilledAtEachStepLosesNothing(t *testing.T) {
	for _, point := range []string{"holder.grow", "holder.grown"} {
		t.Run(point, func(t *testing.T) {
			h := newHolderHost(t, killpoint.Env+"="+point)
			c, b := h.limited("2500M", 0), h.limited("2500M", 0)
			w, other := c.works(gib/2), b.works(gib/2)
			w.goesOn()
			other.goesOn()
			if !h.charges() {
				return
			}
			h.Eventually("it is left to the driver", func() bool { return strings.Contains(h.Log.String(), "left to the driver") })
			h.Stop(unix.SIGTERM) // the next enforcer starts holders without a killpoint
			h.SetEnv("FAKECUDA_MEMORY=3G")
			h.Start()
			if pid := h.holder(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			w.goesOn()
			other.goesOn()
			h.Eventually("they move themselves", func() bool { return h.charged() > gib/2 })
			w.goesOn()
			other.goesOn()
		})
	}
	t.Run("any", func(t *testing.T) {
		h := newHolderHost(t)
		c, b := h.limited("2500M", 0), h.limited("2500M", 0)
		w, other := c.works(gib/2), b.works(gib/2)
		if !h.charges() {
			return
		}
		for range 6 {
			w.goesOn()
			if pid := h.holder(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			other.goesOn()
		}
		h.Eventually("another holder is started", func() bool { return h.holder() > 0 })
		for _, one := range []*container{c, b} {
			must.Output(one.output(one.runtime("delete", "--force", one.id)))(t)
		}
		h.Eventually("nothing is left", func() bool { return h.charged() < 64*mib })
	})
}

func TestAnEnforcerKilledWhileItGivesHostMemoryLosesNothing(t *testing.T) {
	for _, point := range []string{"host.given", "host.given:2", "move.checkpointed", "move.restored", "move.back"} {
		t.Run(point, func(t *testing.T) {
			h := newHolderHost(t)
			c := h.limited("2500M", ownLimit)
			a := c.works(gib)
			charges, holder := h.charges(), 0
			if charges {
				holder = h.holder()
			} else if strings.HasPrefix(point, "host.") {
				return // no host memory is granted
			}
			h.Stop(unix.SIGKILL)
			h.SetEnv("FAKECUDA_MEMORY=3G", killpoint.Env+"="+point)
			h.Start()
			b := h.limited("2500M", 0)
			begun := make(chan worker, 1)
			go func() { begun <- b.begin(gib) }()
			h.dies("FAKECUDA_MEMORY=3G")
			other := <-begun
			a.goesOn()
			other.goesOn()
			a.goesOn()
			if charges && h.holder() != holder {
				t.Errorf("the holder is process %d, want %d as before", h.holder(), holder)
			}
		})
	}
}

func TestFullHolderCgroupIsReported(t *testing.T) {
	h := newHolderHost(t)
	c, b := h.limited("2500M", ownLimit), h.limited("2500M", 0)
	w := c.works(gib)
	if !h.charges() {
		return
	}
	limit := h.file("limit_in_bytes", "max")
	h.Must(os.WriteFile(limit, []byte(strconv.Itoa(256*mib)), 0))
	go func() { b.begin(gib) }()
	h.Eventually("the reason is shown", func() bool {
		out := h.mustRun("inspect", c.id)
		return strings.Contains(out, h.name) && strings.Contains(out, "raise that limit first") && strings.Contains(out, "and by the driver")
	})
	w.goesOn()
	h.Must(os.WriteFile(limit, []byte("-1"), 0))
	h.Eventually("it is moved", func() bool { return h.evictions(c.id) > 0 })
	w.goesOn()
}
