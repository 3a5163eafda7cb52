// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Removing a file unmounts bind mounts on it in all other mount namespaces, so the interceptor must not depend on a volume.
func TestAVolumeCannotUnbindAnotherContainersInterceptor(t *testing.T) {
	for _, c := range []struct {
		name    string
		make    func(t *testing.T, b *bundle, volume string)
		refused bool
	}{
		{"OnEtc", func(t *testing.T, b *bundle, volume string) {
			b.mount(t, volume, "/etc")
		}, true},
		{"OnEtcInAUserNamespace", func(t *testing.T, b *bundle, volume string) {
			b.mount(t, volume, "/etc")
			inUserNamespace(t, b)
		}, true},
		{"OnWhatEtcIsALinkTo", func(t *testing.T, b *bundle, volume string) {
			must.Do(t, os.Rename(b.rootfs("etc"), b.rootfs("srv")))
			symlink(t, "srv", b.rootfs("etc"))
			b.mount(t, volume, "/srv")
		}, true},
		{"OnThePreloadFile", func(t *testing.T, b *bundle, volume string) {
			b.mount(t, filepath.Join(volume, "ld.so.preload"), "/etc/ld.so.preload")
		}, true},
		{"FilesInEtc", func(t *testing.T, b *bundle, volume string) { // as with every engine
			for _, name := range []string{"hosts", "resolv.conf"} {
				b.mount(t, filepath.Join(volume, name), "/etc/"+name)
			}
		}, false},
		{"DirectoryInEtc", func(t *testing.T, b *bundle, volume string) {
			b.mount(t, volume, "/etc/volume")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			forEachRuntime(t, func(t *testing.T, r runtime) {
				e := startEnforcer(t)
				// The volume belongs to an unprivileged user.
				volume := t.TempDir()
				for _, name := range []string{"ld.so.preload", "hosts", "resolv.conf"} {
					write(t, filepath.Join(volume, name), "")
					must.Do(t, os.Chown(filepath.Join(volume, name), 1000, 1000))
				}
				must.Do(t, os.Chown(volume, 1000, 1000))
				b := newBundle(t, id(t), fourGiB, nil)
				c.make(t, b, volume)
				container := newContainer(t, r, id(t), b)
				ours(t, e, container)
				if out, err := container.create(); err != nil {
					must.True(t, c.refused, "create:", err, out)
					checkSentence(t, out, "on what is mounted at")
					return
				}
				expect.True(t, !c.refused, "it was created")
				must.Output(container.run("start", container.id))(t, "start")

				other := newBundle(t, id(t)+"-other", nil, nil)
				mkdir(t, other.rootfs("volume"))
				other.mount(t, volume, "/volume")
				attacker := newContainer(t, r, id(t)+"-other", other)
				attacker.start()
				must.Output(attacker.run("exec", "--user", "1000:1000", attacker.id, "sh", "-c", "busybox rm /volume/*"))(t, "rm")
				if got, err := container.run("exec", container.id, "cat", "/etc/ld.so.preload"); err != nil || got != preloadLine {
					t.Errorf("the interceptor was unbound from outside: %v: %s", err, strings.TrimSpace(got))
				}
			})
		})
	}
}

// runc 1.1 mounts it, and then the container's root differs from the one in config.json.
func TestAVolumeOverTheRootIsRefused(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, nil)
		must.Do(t, os.CopyFS(volume(t, b), os.DirFS(b.rootfs())))
		b.config["mounts"] = append([]object{{
			"destination": "/", "type": "bind", "source": filepath.Join(b.dir, "volume"), "options": []string{"rbind"},
		}}, b.config["mounts"].([]object)...)
		b.save(t)
		before := tree(t, filepath.Join(b.dir, "volume"))
		c := newContainer(t, r, id(t), b)
		ours(t, e, c)
		out, err := c.create()
		expect.Error(t, err, "it was created")
		if strings.Contains(out, "gpuslice: ") { // else the runtime rejected it first
			checkSentence(t, out, "something is mounted on / in the container")
		}
		c.run("delete", "--force", c.id)
		expect.Equal(t, difference(before, tree(t, filepath.Join(b.dir, "volume"))), "", "changes of the volume")
	})
}

// The kernel does not isolate these from each other either: see docs/evidence/security.md.
func TestAContainerThatSharesProcessesOrTheRootCanUnbindTheInterceptor(t *testing.T) {
	requires(t, "runc")
	for _, c := range []struct {
		name, file string
		share      func(victim, other *bundle, pid int)
	}{
		{"Processes", "/proc/1/root/etc/ld.so.preload", func(_, other *bundle, pid int) {
			other.config["linux"].(object)["namespaces"].([]object)[0]["path"] = fmt.Sprintf("/proc/%d/ns/pid", pid)
		}},
		{"Root", "/etc/ld.so.preload", func(victim, other *bundle, _ int) {
			other.config["root"] = object{"path": victim.rootfs()}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startEnforcer(t)
			b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
			victim := newContainer(t, runc, id(t), b)
			victim.start()
			checkBound(t, victim)
			out := must.Get(victim.run("state", victim.id))(t)
			var state struct{ Pid int }
			must.Do(t, json.Unmarshal([]byte(out), &state))

			other := newBundle(t, id(t)+"-other", nil, nil)
			c.share(b, other, state.Pid)
			other.save(t)
			attacker := newContainer(t, runc, id(t)+"-other", other)
			attacker.start()
			attacker.exec("busybox", "rm", c.file)
			if out, err := victim.run("exec", victim.id, "cat", "/etc/ld.so.preload"); err == nil {
				t.Errorf("the slice is still bound: docs/evidence/security.md can promise more: %s", out)
			}
		})
	}
}
