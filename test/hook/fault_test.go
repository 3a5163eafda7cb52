// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

// runc runs poststop hooks after a failed create. crun 1.8.1 does not: there the enforcer detects that init died.
func TestAFailedCreateReleases(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	h := hooks(t, e, "prestart")
	h["prestart"] = append(h["prestart"].([]object), object{"path": "/bin/false", "args": []string{"false"}})
	b := newBundle(t, id(t), fourGiB, h)
	clean := nothingLeft(t, e, b, id(t))
	c := newContainer(t, runc, id(t), b)
	if out, err := c.create(); err == nil {
		t.Fatalf("it was created: %s", out)
	}
	clean()
}

// The runtime fails the create, and the poststop hook cleans up.
func TestAHookThatIsKilledLeavesNothing(t *testing.T) {
	requires(t, "runc", "strace")
	if testing.Short() {
		t.Skip("starts many containers")
	}
	for _, call := range []string{"connect", "openat2", "mkdirat", "flock", "pwrite64", "fstat", "open_tree", "mount_setattr", "move_mount"} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprint(call, nth), func(t *testing.T) {
				e := startEnforcer(t)
				h := hooks(t, e, "prestart")
				hook := h["prestart"].([]object)[0]
				hook["args"] = append([]string{"strace", "-f", "-o", "/dev/null", "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, nth), hook["path"].(string)},
					hook["args"].([]string)[1:]...)
				hook["path"], _ = exec.LookPath("strace")
				b := newBundle(t, id(t), fourGiB, h)
				clean := nothingLeft(t, e, b, id(t))
				c := newContainer(t, runc, id(t), b)
				out, err := c.create()
				if err == nil {
					expect.True(t, nth != 1, "it was not killed", out)
					c.remove() // fewer than nth calls were made
				}
				clean()
			})
		}
	}
}

// TestManyContainersAtOnce starts and stops containers on one root, where they share a record.
func TestManyContainersAtOnce(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	first := newBundle(t, id(t), fourGiB, nil)
	clean := nothingLeft(t, e, first, id(t))
	var all []*container
	for i := range 6 {
		name := fmt.Sprint(id(t), i)
		b := newBundle(t, name, fourGiB, hooks(t, e, "prestart"))
		b.config["root"] = object{"path": first.rootfs()}
		b.save(t)
		all = append(all, newContainer(t, runc, name, b))
	}
	errs := make(chan error)
	for _, c := range all {
		go func() {
			for range 3 {
				if out, err := c.create(); err != nil {
					errs <- fmt.Errorf("create %s: %w: %s", c.id, err, out)
					return
				}
				if out, err := c.run("start", c.id); err != nil {
					errs <- fmt.Errorf("start %s: %w: %s", c.id, err, out)
					return
				}
				if out, err := c.run("exec", c.id, "cat", "/.gpuslice/marker"); err != nil || out != c.id {
					errs <- fmt.Errorf("exec %s: %w: %s", c.id, err, out)
					return
				}
				if out, err := c.run("delete", "--force", c.id); err != nil {
					errs <- fmt.Errorf("delete %s: %w: %s", c.id, err, out)
					return
				}
			}
			errs <- nil
		}()
	}
	for range all {
		expect.NoError(t, <-errs)
	}
	clean()
}
