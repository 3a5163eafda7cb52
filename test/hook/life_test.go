// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const preloadLine = "/.gpuslice/libgpuslice.so\n"

// config.json names the hook, and no other program of the project runs.
func TestHookAloneDoesTheWholeJob(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		for _, stage := range []string{"prestart", "createRuntime"} {
			t.Run(stage, func(t *testing.T) {
				e := startEnforcer(t)
				b := newBundle(t, id(t), fourGiB, hooks(t, e, stage))
				clean := nothingLeft(t, e, b, id(t))
				c := newContainer(t, r, id(t), b)
				c.start()
				checkBound(t, c)
				q := e.registered[0]
				if q.ID != c.id || q.Container != c.id || q.PID <= 1 || len(q.Quotas) != 1 || q.Quotas[0].Bytes != 4<<30 {
					t.Errorf("registered %+v", q)
				}
				c.remove()
				clean()
				expect.Equal(t, len(e.released), 1, "released", e.released)
			})
		}
	})
}

// checkBound checks the mounts from an exec'ed process, which is in the slice too.
func checkBound(t *testing.T, c *container) {
	t.Helper()
	expect.Equal(t, c.exec("cat", "/etc/ld.so.preload"), preloadLine, "ld.so.preload")
	expect.Equal(t, c.exec("cat", "/.gpuslice/libgpuslice.so", "/.gpuslice/marker"), "an interceptor"+c.id, "/.gpuslice")
	table := c.exec("cat", "/proc/self/mountinfo")
	for place, options := range map[string]string{
		"/.gpuslice":                "ro,nosuid,nodev,noexec",
		"/.gpuslice/libgpuslice.so": "ro,nosuid,nodev",
		"/etc/ld.so.preload":        "ro,nosuid,nodev,noexec",
	} {
		if !strings.Contains(table, " "+place+" "+options+",") || strings.Contains(table, " "+place+" "+options+",noexec,") {
			t.Errorf("%s is not mounted %s:\n%s", place, options, table)
		}
	}
	for _, place := range []string{"/.gpuslice/x", "/.gpuslice/libgpuslice.so", "/etc/ld.so.preload"} {
		if out, err := c.run("exec", c.id, "sh", "-c", "echo x >> "+place); err == nil {
			t.Errorf("%s can be written: %s", place, out)
		}
	}
}

func TestRuntimeAddsTheHooks(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, nil)
		c := newContainer(t, r, id(t), b)
		ours(t, e, c)
		config, _ := os.ReadFile(filepath.Join(b.dir, "config.json"))
		clean := nothingLeft(t, e, b, id(t))
		c.start()
		checkBound(t, c)
		c.remove()
		write(t, filepath.Join(b.dir, "config.json"), string(config)) // the hooks may remain
		clean()
	})
}

// ours runs the container's runtime through gpuslice-runtime.
func ours(t testing.TB, e *enforcer, c *container) {
	t.Helper()
	write(t, e.config, e.configText()+"[runtime]\nruntimes = [\""+c.program+"\"]\n")
	c.program = program(t, "gpuslice-runtime")
	c.env = append(c.env, "GPUSLICE_CONFIG="+e.config)
}

func TestAContainerOfTheSameIDCanFollow(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
		clean := nothingLeft(t, e, b, id(t))
		for range 3 {
			c := newContainer(t, r, id(t), b)
			c.start()
			checkBound(t, c)
			c.remove()
			clean()
		}
	})
}

// Removing the mount points of the first container would unmount the second's.
func TestTwoContainersOnOneRoot(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	first := newBundle(t, id(t)+"1", fourGiB, hooks(t, e, "prestart"))
	clean := nothingLeft(t, e, first, id(t)+"1")
	second := newBundle(t, id(t)+"2", fourGiB, hooks(t, e, "prestart"))
	second.config["root"] = object{"path": first.rootfs()}
	second.save(t)
	c1, c2 := newContainer(t, runc, id(t)+"1", first), newContainer(t, runc, id(t)+"2", second)
	c1.start()
	c2.start()
	checkBound(t, c1)
	c1.remove()
	checkBound(t, c2)
	c2.remove()
	clean()
}

// With a shared volume, Docker makes the propagation of the root shared.
func TestMountsDoNotReachTheHost(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
		shareMount(t, filepath.Dir(b.dir))
		b.config["linux"].(object)["rootfsPropagation"] = "shared"
		b.save(t)
		clean := nothingLeft(t, e, b, id(t))
		before := tree(t, b.rootfs())
		c := newContainer(t, r, id(t), b)
		c.start()
		checkBound(t, c)
		if d := difference(before, tree(t, b.rootfs())); strings.Contains(d, "marker") || strings.Count(d, "\n") > 1 {
			t.Errorf("the host sees the container's mounts:\n%s", d)
		}
		c.remove()
		clean()
	})
}

func TestContainerWithoutAQuotaStartsIfConfigured(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	b := newBundle(t, id(t), nil, nil)
	c := newContainer(t, runc, id(t), b)
	write(t, e.config, e.configText()+"[runtime]\nruntimes = [\"runc\"]\nmissing = \"pass\"\n")
	c.program, c.env = program(t, "gpuslice-runtime"), []string{"GPUSLICE_CONFIG=" + e.config}
	clean := nothingLeft(t, e, b, id(t))
	c.start()
	expect.Error(t, must.Err(os.Stat(b.rootfs(".gpuslice"))), "/.gpuslice was made")
	c.remove()
	clean()
}
