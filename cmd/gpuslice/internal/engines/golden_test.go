// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

var update = flag.Bool("update", false, "write the golden files")

type world struct {
	*testing.T
	Host
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{t, Host{Root: t.TempDir(), Docker: "29.0.1", Runtime: "/usr/local/bin/" + RuntimeName, Shim: "/usr/local/bin/" + ShimName, Hook: "/usr/local/bin/" + HookName}}
	for _, program := range []string{w.Runtime, w.Shim, w.Hook} {
		w.put(program, "#!")
		if err := os.Chmod(w.Root+program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w world) put(file, text string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.Root+file), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.Root+file, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

func (w world) get(file string) string {
	w.Helper()
	text, err := os.ReadFile(w.Root + file)
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// files returns all files beneath the root with their texts and modes, and all directories.
func (w world) files() map[string]string {
	all := make(map[string]string)
	err := filepath.WalkDir(w.Root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(file, w.Root)
		switch {
		case d.IsDir():
			if stays := "/var/lib/gpuslice"; !strings.HasPrefix(stays, name) { // belongs to gpusliced
				all[name] = info.Mode().String()
			}
		case d.Type()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(file)
		default:
			text, err := os.ReadFile(file)
			all[name] = info.Mode().String() + "\n" + string(text)
			return err
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

func (w world) install(engine string, o Options) Result {
	w.Helper()
	r, err := Install(w.Host, engine, o)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w world) uninstall(engine string) Result {
	w.Helper()
	r, err := Uninstall(w.Host, engine, Options{})
	if err != nil {
		w.Fatal(err)
	}
	return r
}

type golden struct {
	engine string
	input  string // in testdata/ENGINE, copied to file; "" for none
	file   string
	output string // file that is written; "" is file
	expect map[string]any
	notes  []string // parts of the notes
	root   []string // path of the entry
}

const cri2, cri3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"

func runtimesOf(plugin string) []string {
	return []string{"plugins", plugin, "containerd", "runtimes", name}
}

var (
	patterns = []any{"gpuslice.*"}
	shim     = map[string]any{"runtime_type": shimType, "pod_annotations": patterns, "container_annotations": patterns}
	byType   = map[string]any{"runtimeType": shimType}
	byPath   = map[string]any{"path": "/usr/local/bin/" + RuntimeName}
)

func and(m map[string]any, more map[string]any) map[string]any {
	all := maps.Clone(m)
	maps.Copy(all, more)
	return all
}

func goldens() []golden {
	var all []golden
	for _, input := range []string{"", "empty.json", "object.json", "heavy.json", "tabs.json", "crlf.json", "one-line.json", "byte-order-mark.json"} {
		all = append(all, golden{engine: "docker", input: input, file: dockerFile, expect: byType, root: []string{"runtimes", name}})
	}
	all = append(all, golden{engine: "docker", input: "nvidia.json", file: dockerFile, root: []string{"runtimes", name},
		expect: and(byPath, map[string]any{"runtimeArgs": []any{"--debug", "--log=/var/log/nvidia.log"}}),
		notes:  []string{`runtimes = ["/usr/bin/nvidia-container-runtime"]`}})

	withOptions := func(options map[string]any) map[string]any {
		return and(shim, map[string]any{"runtime_type": runcType, "options": and(options, map[string]any{"BinaryName": "/usr/local/bin/" + RuntimeName})})
	}
	systemd := withOptions(map[string]any{"SystemdCgroup": true})
	for _, c := range []golden{
		{input: "", root: runtimesOf(cri2)},
		{input: "default-1.6.toml", root: runtimesOf(cri2)},
		{input: "default-1.7.toml", root: runtimesOf(cri2), expect: and(shim, map[string]any{"sandbox_mode": "podsandbox"})},
		{input: "default-2.4.toml", root: runtimesOf(cri3), expect: and(shim, map[string]any{"sandboxer": "podsandbox"})},
		{input: "kubeadm.toml", root: runtimesOf(cri2), expect: systemd},
		{input: "crlf.toml", root: runtimesOf(cri2), expect: systemd},
		{input: "dotted.toml", root: runtimesOf(cri3), expect: systemd},
		{input: "commented.toml", root: runtimesOf(cri2)},
		{input: "docker-package.toml", root: runtimesOf("cri"), notes: []string{"disabled_plugins in /etc/containerd/config.toml"}},
		{input: "nvidia.toml", root: runtimesOf(cri2), notes: []string{`runtimes = ["/usr/bin/nvidia-container-runtime"]`},
			expect: and(systemd, map[string]any{"privileged_without_host_devices": true, "pod_annotations": []any{"gpuslice.*", "nvidia.cdi.k8s.io/*"}})},
		{input: "inline.toml", root: runtimesOf(cri3), expect: withOptions(map[string]any{"SystemdCgroup": true, "IoUid": int64(1000)})},
	} {
		c.engine, c.file = "containerd", containerdFile
		if c.expect == nil {
			c.expect = shim
		}
		all = append(all, c)
	}

	crio := map[string]any{"runtime_path": "/usr/local/bin/" + RuntimeName, "runtime_type": "oci", "runtime_root": "/run/runc"}
	all = append(all,
		golden{engine: "crio", output: crioDropIn, expect: crio, root: crioRuntime(name)},
		golden{engine: "crio", input: "00-default.conf", file: path.Dir(crioDropIn) + "/00-default.conf", output: crioDropIn, root: crioRuntime(name),
			expect: and(crio, map[string]any{"monitor_path": "/usr/libexec/crio/conmon", "monitor_cgroup": "system.slice",
				"monitor_env": []any{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})},
		golden{engine: "crio", input: "10-crio.conf", file: path.Dir(crioDropIn) + "/10-crio.conf", output: crioDropIn, root: crioRuntime(name),
			expect: and(crio, map[string]any{"runtime_root": "/run/crun", "monitor_path": "/usr/libexec/crio/conmon", "allowed_annotations": []any{"io.containers.trace-syscall"}}),
			notes:  []string{`runtimes = ["/usr/libexec/crio/crun"]`}},
		golden{engine: "podman", input: "containers.conf", file: podmanShared, output: podmanDropIn, root: []string{"engine", "runtimes", name}},
	)
	return all
}

func (g golden) format() conf.Format {
	if g.engine == "docker" {
		return conf.JSON
	}
	return conf.TOML
}

func TestConfigurationsThatAreFound(t *testing.T) {
	for _, g := range goldens() {
		if g.output == "" {
			g.output = g.file
		}
		golden := filepath.Join("testdata", g.engine, g.input+".golden")
		if g.input == "" {
			golden = filepath.Join("testdata", g.engine, "none.golden")
		}
		t.Run(g.engine+"/"+strings.TrimSuffix(filepath.Base(golden), ".golden"), func(t *testing.T) {
			w := newWorld(t)
			var input []byte
			if g.input != "" {
				var err error
				if input, err = os.ReadFile(filepath.Join("testdata", g.engine, g.input)); err != nil {
					t.Fatal(err)
				}
				w.put(g.file, string(input))
				if err := os.Chmod(w.Root+g.file, 0o640); err != nil {
					t.Fatal(err)
				}
			}
			if g.output != g.file {
				input = nil
			}
			before := w.files()

			dry := w.install(g.engine, Options{DryRun: true})
			if dry.State != Done || len(dry.Changes) != 1 {
				t.Errorf("a dry run: %+v", dry)
			}
			if after := w.files(); !maps.Equal(before, after) {
				t.Errorf("a dry run changed something: %v", after)
			}

			r := w.install(g.engine, Options{})
			after := []byte(w.get(g.output))
			if *update {
				if err := os.WriteFile(golden, after, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(after, want) {
				t.Errorf("got\n%s\nwant\n%s", after, want)
			}
			if patched := apply(t, input, dry.Changes[0].Diff); !bytes.Equal(patched, after) {
				t.Errorf("the diff makes\n%s", patched)
			}
			g.check(t, input, after)
			for _, note := range g.notes {
				if said := strings.Join(r.Notes, "\n"); !strings.Contains(said, note) {
					t.Errorf("%q is not in %q", note, said)
				}
			}
			if len(g.notes) == 0 && len(r.Notes) > 0 {
				t.Errorf("it says %q", r.Notes)
			}

			installed := w.files()
			if again := w.install(g.engine, Options{}); again.State != Nothing || !maps.Equal(installed, w.files()) {
				t.Errorf("a second time: %+v", again)
			}
			if r := w.uninstall(g.engine); r.State != Done {
				t.Errorf("undoing says %+v", r)
			}
			if after := w.files(); !maps.Equal(before, after) {
				t.Errorf("after undoing:\n%v\nbefore:\n%v", after, before)
			}
			if again := w.uninstall(g.engine); again.State != Nothing {
				t.Errorf("undoing a second time: %+v", again)
			}
			g.editedSince(t, w, input)
		})
	}
}

// check compares the new content with the old one and the entry.
func (g golden) check(t *testing.T, input, after []byte) {
	t.Helper()
	was, err := g.format().Decode(input)
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.format().Decode(after)
	if err != nil {
		t.Fatal(err)
	}
	entry, _ := conf.Lookup(got, g.root...)
	if g.expect != nil && !conf.Equal(entry, g.expect) {
		t.Errorf("the entry is %v, want %v", entry, g.expect)
	}
	// Without the entry, and the one that containerd 1.x needs next to it, the content is unchanged.
	for _, own := range [][]string{g.root, append(g.root[:len(g.root)-1:len(g.root)-1], "runc"), {"version"}} {
		if _, there := conf.Lookup(was, own...); there {
			continue
		}
		if _, there := conf.Lookup(got, own...); there {
			if after, err = g.format().Remove(after, own); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err = g.format().Decode(after); err != nil {
		t.Fatal(err)
	}
	if !conf.Equal(prune(got), prune(was)) {
		t.Errorf("without the entry it says\n%v\nbefore it said\n%v", got, was)
	}
}

func prune(table map[string]any) map[string]any {
	pruned := make(map[string]any)
	for key, value := range table {
		if below, ok := value.(map[string]any); ok {
			if below = prune(below); len(below) == 0 {
				continue
			}
			value = below
		}
		pruned[key] = value
	}
	return pruned
}

// editedSince changes the file between the installation and its removal.
func (g golden) editedSince(t *testing.T, w world, input []byte) {
	t.Helper()
	w.install(g.engine, Options{})
	key := []string{"of-another", "value"}
	edited, err := g.format().Add([]byte(w.get(g.output)), key, "x")
	if err != nil {
		t.Fatal(err)
	}
	w.put(g.output, string(edited))
	if again := w.install(g.engine, Options{}); again.State != Nothing {
		t.Errorf("installed again after an edit of another's: %+v", again)
	}
	w.uninstall(g.engine)
	left := []byte(w.get(g.output))
	if bytes.Contains(left, []byte(RuntimeName)) || bytes.Contains(left, []byte(ShimName)) {
		t.Errorf("it is still there:\n%s", left)
	}
	got, err := g.format().Decode(left)
	if err != nil {
		t.Fatal(err)
	}
	was, err := g.format().Decode(input)
	if err != nil {
		t.Fatal(err)
	}
	was["of-another"] = map[string]any{"value": "x"}
	delete(got, "version") // of a file that we created
	delete(was, "version")
	if !conf.Equal(prune(got), prune(was)) {
		t.Errorf("after undoing it says\n%v\nwant\n%v", got, was)
	}
}
