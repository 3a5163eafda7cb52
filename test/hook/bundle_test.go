// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type object = map[string]any

// bundle is an OCI bundle with busybox in its root filesystem.
type bundle struct {
	dir    string
	config object
}

func (b *bundle) rootfs(elem ...string) string {
	return filepath.Join(append([]string{b.dir, "rootfs"}, elem...)...)
}

func newBundle(t testing.TB, id string, annotations map[string]string, hooks object) *bundle {
	t.Helper()
	b := &bundle{dir: filepath.Join(t.TempDir(), "bundle")}
	for _, dir := range []string{"bin", "etc", "proc", "dev", "tmp"} {
		mkdir(t, b.rootfs(dir))
	}
	must.Output(exec.Command("cp", "/bin/busybox", b.rootfs("bin", "busybox")).CombinedOutput())(t)
	for _, name := range []string{"sh", "sleep", "cat", "ls", "true"} {
		must.Do(t, os.Symlink("busybox", b.rootfs("bin", name)))
	}
	b.config = object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/",
			"args": []string{"/bin/sleep", "1000"}, "env": []string{"PATH=/bin"},
		},
		"root":     object{"path": "rootfs"},
		"hostname": "test",
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}},
		},
		"linux": object{
			"cgroupsPath": "/gpuslice-test-" + id,
			"namespaces":  []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}},
		},
		"annotations": annotations,
	}
	if hooks != nil {
		b.config["hooks"] = hooks
	}
	b.save(t)
	return b
}

func (b *bundle) save(t testing.TB) {
	t.Helper()
	text := must.Get(json.MarshalIndent(b.config, "", "\t"))(t)
	write(t, filepath.Join(b.dir, "config.json"), string(text))
}

func (b *bundle) mount(t testing.TB, source, destination string, options ...string) {
	t.Helper()
	b.config["mounts"] = append(b.config["mounts"].([]object), object{
		"destination": destination, "type": "bind", "source": source, "options": append([]string{"rbind"}, options...),
	})
	b.save(t)
}

// linux sets a list of paths in the section linux of config.json.
func (b *bundle) linux(t testing.TB, key string, paths ...string) {
	t.Helper()
	b.config["linux"].(object)[key] = paths
	b.save(t)
}

func (b *bundle) tmpfs(t testing.TB, destination string, options ...string) {
	t.Helper()
	b.config["mounts"] = append(b.config["mounts"].([]object), object{
		"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options,
	})
	b.save(t)
}

type runtime struct {
	name   string
	prefix []string // command prefix
}

type container struct {
	t       testing.TB
	id      string
	b       *bundle
	program string // the runtime, or gpuslice-runtime
	prefix  []string
	root    string
	env     []string
}

func newContainer(t testing.TB, r runtime, id string, b *bundle) *container {
	c := &container{t: t, id: id, b: b, program: r.name, prefix: r.prefix, root: t.TempDir()}
	t.Cleanup(func() {
		c.run("delete", "--force", id)
		removeCgroups(id)
	})
	return c
}

func (c *container) run(verb string, args ...string) (string, error) {
	words := slices.Concat(c.prefix, []string{c.program, "--root", c.root, "--log", c.log(), "--log-format", "json", verb}, args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	// A file, not a pipe: processes of the container keep it open.
	out, err := os.CreateTemp(c.root, "out")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name())
	return string(text), err
}

func (c *container) log() string { return filepath.Join(c.root, "log") }

func (c *container) create() (string, error) { return c.run("create", "--bundle", c.b.dir, c.id) }

func (c *container) start() {
	c.t.Helper()
	must.Output(c.create())(c.t, "create")
	must.Output(c.run("start", c.id))(c.t, "start")
}

func (c *container) exec(args ...string) string {
	c.t.Helper()
	out := must.Output(c.run("exec", append([]string{c.id}, args...)...))(c.t, "exec", args)
	return out
}

func (c *container) remove() {
	c.t.Helper()
	must.Output(c.run("delete", "--force", c.id))(c.t, "delete")
}

// removeCgroups removes cgroups that a failed create may leave.
func removeCgroups(id string) {
	for _, dir := range cgroups(id) {
		os.Remove(dir)
	}
}

func cgroups(id string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/gpuslice-test-" + id)
	v2, _ := filepath.Glob("/sys/fs/cgroup/gpuslice-test-" + id)
	return append(v1, v2...)
}

// nothingLeft returns a function that fails the test if the bundle, the enforcer's directory, mounts or cgroups have changed.
func nothingLeft(t testing.TB, e *enforcer, b *bundle, id string) func() {
	t.Helper()
	ours := []string{b.dir, e.dir, "/run/gpuslice", " /.gpuslice", " /etc/ld.so.preload "}
	look := func() []string {
		var all []string
		for _, dir := range []string{b.dir, e.dir} {
			all = append(all, tree(t, dir)...)
		}
		table := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
		for line := range strings.Lines(string(table)) {
			// Ignore other mounts of gpuslice: runc mounts itself in concurrent tests of other packages.
			if slices.ContainsFunc(ours, func(s string) bool { return strings.Contains(line, s) }) {
				all = append(all, "mount "+line)
			}
		}
		return append(all, cgroups(id)...)
	}
	before := look()
	return func() {
		t.Helper()
		// crun removes the cgroup last.
		var after []string
		for range 50 {
			if after = look(); slices.Equal(before, after) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !slices.Equal(before, after) {
			t.Errorf("left behind or gone:\n%s", difference(before, after))
		}
		expect.Equal(t, e.active(), 0, "slices are left")
	}
}

func difference(before, after []string) string {
	was := make(map[string]bool)
	for _, s := range before {
		was[s] = true
	}
	var d []string
	for _, s := range after {
		if !was[s] {
			d = append(d, "+ "+s)
		}
		delete(was, s)
	}
	for _, s := range slices.Sorted(maps.Keys(was)) {
		d = append(d, "- "+s)
	}
	return strings.Join(d, "\n")
}

// tree lists a directory with kind, mode and size, without sockets and the hook's empty directory of records.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSocket != 0 || strings.HasSuffix(path, "/run/hook") {
			return nil
		}
		size := info.Size()
		if d.IsDir() {
			size = 0
		}
		all = append(all, fmt.Sprint(path, " ", info.Mode(), " ", size))
		return nil
	})
	must.Do(t, err)
	return all
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	must.Do(t, os.MkdirAll(path, 0o755))
}
