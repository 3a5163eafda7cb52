// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
	"github.com/gpuslice/gpuslice/test/needs"
)

func TestARuntimeConfiguredByHandIsKept(t *testing.T) {
	const cri = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.gpuslice]\n"
	for _, c := range []struct {
		name, engine, file, text string
		refusal                  string // "" if it is kept
	}{
		{"Docker", "docker", dockerFile, `{"runtimes": {"gpuslice": {"path": "/opt/gpuslice-runtime"}}}`, ""},
		{"Docker by type", "docker", dockerFile, `{"runtimes": {"gpuslice": {"runtimeType": "io.containerd.gpuslice.v1"}}}`, ""},
		{"Docker, another", "docker", dockerFile, `{"runtimes": {"gpuslice": {"path": "/usr/bin/runc"}}}`, "/etc/docker/daemon.json has a runtime gpuslice already, and it runs neither containerd-shim-gpuslice-v1 nor gpuslice-runtime: --force replaces it"},
		{"containerd", "containerd", containerdFile, cri + "runtime_type = \"io.containerd.gpuslice.v1\"\npod_annotations = [\"gpu*\"]\ncontainer_annotations = [\"*\"]\n", ""},
		{"containerd through runc's shim", "containerd", containerdFile, cri + "runtime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"*\"]\ncontainer_annotations = [\"*\"]\noptions.BinaryName = \"gpuslice-runtime\"\n", ""},
		{"containerd, no annotations", "containerd", containerdFile, cri + "runtime_type = \"io.containerd.gpuslice.v1\"\n", "its pod_annotations does not pass gpuslice.vram on"},
		{"containerd, another", "containerd", containerdFile, cri + "runtime_type = \"io.containerd.runc.v2\"\n", "it runs neither containerd-shim-gpuslice-v1 nor gpuslice-runtime"},
		{"CRI-O, elsewhere", "crio", crioFile, "[crio.runtime.runtimes.gpuslice]\nruntime_path = \"/opt/gpuslice-runtime\"\n", ""},
		{"CRI-O, another", "crio", crioFile, "[crio.runtime.runtimes.gpuslice]\nruntime_path = \"/usr/bin/crun\"\n", "/etc/crio/crio.conf has a runtime gpuslice already, and its runtime_path"},
		{"Podman, the drop-in", "podman", podmanDropIn, "[engine.runtimes]\ngpuslice = [\"/x/gpuslice-runtime\"]\n", ""},
		{"Podman, another", "podman", podmanFile, "[engine.runtimes]\ngpuslice = [\"/usr/bin/crun\"]\n", "/etc/containers/containers.conf has a runtime gpuslice already, and it does not name gpuslice-runtime"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.put(c.file, c.text)
			before := w.files()
			r, err := Install(w.Host, c.engine, Options{})
			if c.refusal == "" {
				if err != nil || r.State != Nothing || !strings.Contains(strings.Join(r.Notes, "\n"), "kept as it is") {
					t.Errorf("%+v, %v", r, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.refusal) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.refusal)
			}
			if !maps.Equal(before, w.files()) {
				t.Errorf("it is changed: %v", w.files())
			}
			if r := w.uninstall(c.engine); r.State != Nothing || !maps.Equal(before, w.files()) {
				t.Errorf("uninstall: %+v", r)
			}
			if c.refusal == "" {
				return
			}
			if r := w.install(c.engine, Options{Force: true}); r.State != Done {
				t.Errorf("by force: %+v", r)
			}
			if w.uninstall(c.engine); !maps.Equal(before, w.files()) {
				t.Errorf("after force was undone: %v", w.files())
			}
		})
	}
}

func TestInstallReplacesTheDefaultRuntimeAndUninstallRestoresIt(t *testing.T) {
	const cri = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"crun\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\nruntime_type = \"io.containerd.runc.v2\"\n"
	for _, c := range []struct{ engine, file, text, want string }{
		{"docker", dockerFile, "", `"default-runtime": "gpuslice"`},
		{"docker", dockerFile, `{"debug": true}`, `"default-runtime": "gpuslice"`},
		{"docker", dockerFile, `{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}`, `"default-runtime": "gpuslice"`},
		{"containerd", containerdFile, cri, `default_runtime_name = "gpuslice"`},
		{"containerd", containerdFile, "", `default_runtime_name = "gpuslice"`},
		{"crio", crioDropIn, "", `default_runtime = "gpuslice"`},
		{"podman", podmanDropIn, "", `runtime = "gpuslice"`},
	} {
		t.Run(c.engine, func(t *testing.T) {
			w := newWorld(t)
			if c.text != "" {
				w.put(c.file, c.text)
			}
			before := w.files()
			w.install(c.engine, Options{Default: true})
			if got := w.get(c.file); !strings.Contains(got, c.want) || strings.Count(got, c.want[:strings.IndexAny(c.want, "=:")]) != 1 {
				t.Errorf("%s", got)
			}
			if r := w.install(c.engine, Options{Default: true}); r.State != Nothing {
				t.Errorf("a second time: %+v", r)
			}
			w.install(c.engine, Options{})
			if got := w.get(c.file); strings.Contains(got, c.want) {
				t.Errorf("without the flag it is not taken back:\n%s", got)
			}
			w.install(c.engine, Options{Default: true})
			if w.uninstall(c.engine); !maps.Equal(before, w.files()) {
				t.Errorf("%v, want %v", w.files(), before)
			}
		})
	}
	w := newWorld(t)
	w.put(dockerFile, `{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}`)
	w.install("docker", Options{Default: true})
	w.put(dockerFile, strings.Replace(w.get(dockerFile), "{", `{"debug": true, `, 1))
	w.uninstall("docker")
	if got := w.get(dockerFile); !strings.Contains(got, `"default-runtime": "crun"`) || strings.Contains(got, "gpuslice") {
		t.Errorf("after an edit: %s", got)
	}
}

func TestUninstallRestoresAReplacedRuntimeInAnEditedFile(t *testing.T) {
	w := newWorld(t)
	w.put(dockerFile, `{"runtimes": {"gpuslice": {"path": "/usr/bin/runc"}}}`)
	w.install("docker", Options{Force: true})
	w.put(dockerFile, strings.Replace(w.get(dockerFile), "{", `{"debug": true, `, 1))
	w.uninstall("docker")
	if got, want := w.get(dockerFile), `{"debug": true, "runtimes": {"gpuslice": {"path": "/usr/bin/runc"}}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAnUnreadableConfigurationIsRefusedAndUnchanged(t *testing.T) {
	for _, c := range []struct{ name, engine, file, text, want string }{
		{"JSON", "docker", dockerFile, "{\n  \"debug\": true,\n}", "docker: /etc/docker/daemon.json: line 3: invalid character '}'"},
		{"TOML", "containerd", containerdFile, "version = 2\n[plugins\n", "containerd: /etc/containerd/config.toml: line 2: "},
		{"a version of the future", "containerd", containerdFile, "version = 5\n", "version = 5 of the configuration is not known: 1 to 4 are"},
		{"a version that is none", "containerd", containerdFile, "version = \"2\"\n", "version = 2 of the configuration is not known"},
		{"an import that is broken", "containerd", containerdFile, "version = 2\nimports = [\"*.toml\"]\n[plugins\n", "line 3"},
		{"an import that is gone", "containerd", containerdFile, "version = 2\nimports = [\"/etc/gone.toml\"]\n", "imports /etc/gone.toml, which is not there"},
		{"a drop-in of another", "crio", path.Dir(crioDropIn) + "/10-x.conf", "[crio\n", "/etc/crio/crio.conf.d/10-x.conf: line 1: "},
		{"a directory", "docker", dockerFile + "/x", "", "/etc/docker/daemon.json is not a regular file"},
		{"a runtime that is no table", "docker", dockerFile, `{"runtimes": []}`, `"runtimes" is there already, as something else`},
		{"a default runtime that is no name", "docker", dockerFile, `{"default-runtime": 1}`, "default-runtime is not a name"},
		{"a hook of another", "podman", hooksShared + "/99-gpuslice-prestart.json", "{}", "is there already, and is not ours"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.put(c.file, c.text)
			before := w.files()
			_, err := Install(w.Host, c.engine, Options{Hooks: c.engine == "podman"})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if !maps.Equal(before, w.files()) {
				t.Errorf("it is changed: %v", w.files())
			}
		})
	}
}

func TestAnEngineWhoseDefaultRuntimeIsOursKeepsIt(t *testing.T) {
	for _, c := range []struct{ engine, file, old, new, where string }{
		{"docker", dockerFile, "{", `{"default-runtime": "gpuslice",`, "default-runtime in /etc/docker/daemon.json"},
		{"containerd", containerdFile, "version = 2\n", "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".containerd.default_runtime_name = \"gpuslice\"\n", "default_runtime_name in /etc/containerd/config.toml"},
		{"crio", crioFile, "", "[crio.runtime]\ndefault_runtime = \"gpuslice\"\n", "default_runtime in /etc/crio/crio.conf"},
		{"podman", podmanFile, "", "[engine]\nruntime = \"gpuslice\"\n", "runtime in /etc/containers/containers.conf"},
	} {
		t.Run(c.engine, func(t *testing.T) {
			w := newWorld(t)
			w.install(c.engine, Options{})
			text := c.new
			if c.old != "" {
				text = strings.Replace(w.get(c.file), c.old, c.new, 1)
			}
			w.put(c.file, text)
			before := w.files()
			_, err := Uninstall(w.Host, c.engine, Options{})
			if err == nil || !strings.Contains(err.Error(), c.where+" makes gpuslice the default runtime") {
				t.Errorf("%v, want %q", err, c.where)
			}
			if !maps.Equal(before, w.files()) {
				t.Errorf("it is changed: %v", w.files())
			}
		})
	}
}

func TestAFileBehindALinkIsEditedAndKeepsItsModeAndOwner(t *testing.T) {
	needs.Root(t)
	w := newWorld(t)
	w.put("/opt/managed/daemon.json", "{}")
	real := w.Root + "/opt/managed/daemon.json"
	if err := errors.Join(os.Chmod(real, 0o600), os.Chown(real, 12345, 54321), os.MkdirAll(w.Root+"/etc/docker", 0o755),
		os.Symlink("/opt/managed/daemon.json", w.Root+dockerFile)); err != nil {
		t.Fatal(err)
	}
	before := w.files()
	w.install("docker", Options{})
	if target, err := os.Readlink(w.Root + dockerFile); err != nil || target != "/opt/managed/daemon.json" {
		t.Errorf("the link is %q, %v", target, err)
	}
	info, err := os.Stat(real)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o600 || owner.Uid != 12345 || owner.Gid != 54321 {
		t.Errorf("it is %v of %d:%d", info.Mode(), owner.Uid, owner.Gid)
	}
	if !strings.Contains(w.get("/opt/managed/daemon.json"), shimType) {
		t.Error("what the link leads to is not edited")
	}
	if w.uninstall("docker"); !maps.Equal(before, w.files()) {
		t.Errorf("after undoing: %v", w.files())
	}
}

func TestNoLinkLeadsOutOfAnImage(t *testing.T) {
	outside := t.TempDir()
	w := newWorld(t)
	if err := os.Symlink(outside, w.Root+"/etc"); err != nil {
		t.Fatal(err)
	}
	w.install("docker", Options{})
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if text := w.get(filepath.Join(outside, "docker/daemon.json")); !strings.Contains(text, shimType) {
		t.Errorf("beneath the root there is %q", text)
	}
}

func TestEntryIsWrittenWhereContainerdReadsIt(t *testing.T) {
	const imports = "imports = [\"conf.d/*.toml\"]\n"
	const section = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\noptions.SystemdCgroup = true\n"
	const dropIn = "/etc/containerd/conf.d/99-x.toml"
	t.Run("version 2: the last file with the section replaces all others", func(t *testing.T) {
		w := newWorld(t)
		w.put(containerdFile, "version = 2\n"+imports+"[plugins.\"io.containerd.grpc.v1.cri\"]\n")
		w.put(dropIn, "version = 2\n"+section)
		w.put("/etc/containerd/conf.d/a.toml", "version = 2\noom_score = 1\n")
		before := w.files()
		w.install("containerd", Options{})
		if text := w.get(dropIn); !strings.Contains(text, RuntimeName) || strings.Count(text, "SystemdCgroup = true") != 2 {
			t.Errorf("the drop-in has\n%s", text)
		}
		if strings.Contains(w.get(containerdFile), "gpuslice") {
			t.Error("the main file is edited too")
		}
		if w.uninstall("containerd"); !maps.Equal(before, w.files()) {
			t.Errorf("after undoing: %v", w.files())
		}
	})
	t.Run("version 3: the main file, with settings of all", func(t *testing.T) {
		w := newWorld(t)
		w.put(containerdFile, "version = 3\n"+imports)
		w.put(dropIn, "version = 3\n"+strings.Replace(section, cri2, cri3, 1))
		w.install("containerd", Options{})
		if text := w.get(containerdFile); !strings.Contains(text, RuntimeName) || !strings.Contains(text, "SystemdCgroup = true") {
			t.Errorf("the main file has\n%s", text)
		}
	})
}

func TestAShimElsewhereIsNamedByItsPath(t *testing.T) {
	w := newWorld(t)
	w.Shim = "/opt/gpuslice/bin/" + ShimName
	r := w.install("containerd", Options{})
	if text := w.get(containerdFile); !strings.Contains(text, `runtime_path = "/opt/gpuslice/bin/containerd-shim-gpuslice-v1"`) {
		t.Error(text)
	}
	if want := Warning + w.Shim + " is not there"; !strings.Contains(strings.Join(r.Notes, "\n"), want) {
		t.Errorf("it says %q, want %q", r.Notes, want)
	}
}

func TestChangedSettingsOfTheDefaultRuntimeAreTakenOver(t *testing.T) {
	w := newWorld(t)
	text, err := os.ReadFile("testdata/containerd/kubeadm.toml")
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(text), "SystemdCgroup = true", "SystemdCgroup = false", 1)
	w.put(containerdFile, without)
	w.install("containerd", Options{})
	w.put(containerdFile, strings.Replace(w.get(containerdFile), "SystemdCgroup = false", "SystemdCgroup = true", 1))
	if r := w.install("containerd", Options{}); r.State != Done || strings.Count(w.get(containerdFile), "SystemdCgroup = true") != 2 {
		t.Errorf("%+v\n%s", r, w.get(containerdFile))
	}
	if w.uninstall("containerd"); w.get(containerdFile) != string(text) {
		t.Errorf("after undoing:\n%s", w.get(containerdFile))
	}
}

// The entry that containerd 1.x needs next to ours stays if another change depends on it.
func TestADefaultRuntimeThatWasChangedStays(t *testing.T) {
	const runc = "  runtime_type = \"io.containerd.runc.v2\"\n"
	for _, c := range []struct{ name, more, want string }{
		{"an option", "  options.SystemdCgroup = true\n", "SystemdCgroup = true"},
		{"another runtime", "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\n  runtime_type = \"io.containerd.kata.v2\"\n", "io.containerd.kata.v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.install("containerd", Options{})
			w.put(containerdFile, strings.Replace(w.get(containerdFile), runc, runc+c.more, 1))
			w.uninstall("containerd")
			if text := w.get(containerdFile); !strings.Contains(text, runc) || !strings.Contains(text, c.want) || strings.Contains(text, "gpuslice") {
				t.Error(text)
			}
		})
	}
}

func TestHooksAreBoundToTheAnnotation(t *testing.T) {
	for _, c := range []struct{ name, conf, dir string }{
		{"where Podman looks by itself", "", hooksShared},
		{"in the host's directory if that is read", "[engine]\nhooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/containers/oci/hooks.d\"]\n", hooksHost},
		{"where the configuration says", "[engine]\nhooks_dir = [\"/opt/a\", \"/opt/b/\"]\n", "/opt/b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.put(podmanFile, c.conf)
			before := w.files()
			if r := w.install("podman", Options{Hooks: true}); len(r.Changes) != 3 {
				t.Errorf("%+v", r)
			}
			for file, stage := range map[string]string{"99-gpuslice-prestart.json": "prestart", "00-gpuslice-poststop.json": "poststop"} {
				var hook struct {
					Version string
					Hook    struct {
						Path    string
						Args    []string
						Env     []string
						Timeout int
					}
					When   struct{ Annotations map[string]string }
					Stages []string
				}
				if err := json.Unmarshal([]byte(w.get(path.Join(c.dir, file))), &hook); err != nil {
					t.Fatal(err)
				}
				if hook.Version != "1.0.0" || hook.Hook.Path != w.Hook || strings.Join(hook.Hook.Args, " ") != "gpuslice-hook "+stage ||
					hook.When.Annotations[`^gpuslice\.`] != ".*" || len(hook.Stages) != 1 || hook.Stages[0] != stage {
					t.Errorf("%s has %+v", file, hook)
				}
			}
			if again := w.install("podman", Options{Hooks: true}); again.State != Nothing {
				t.Errorf("a second time: %+v", again)
			}
			// An incomplete hook would keep Podman from starting any container, so an edited one is removed as a whole.
			w.put(path.Join(c.dir, "99-gpuslice-prestart.json"), "{}")
			if w.uninstall("podman"); !maps.Equal(before, w.files()) {
				t.Errorf("after undoing: %v", w.files())
			}
		})
	}
}

func TestOnlyInstalledEnginesArePresent(t *testing.T) {
	w := newWorld(t)
	for _, name := range Names() {
		if present, why, err := Present(w.Host, name); present || err != nil || why == "" {
			t.Errorf("%s on an empty host: %v, %q, %v", name, present, why, err)
		}
	}
	w.put("/usr/bin/podman", "")
	if err := os.Chmod(w.Root+"/usr/bin/podman", 0o755); err != nil {
		t.Fatal(err)
	}
	w.put(dockerFile, "{}")
	w.put(containerdFile, "disabled_plugins = [\"cri\"]\n")
	for name, want := range map[string]string{"docker": "", "podman": "", "crio": "neither crio nor /etc/crio/crio.conf is", "containerd": "its CRI plugin is disabled"} {
		present, why, err := Present(w.Host, name)
		if err != nil || present != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%s: %v, %q, %v", name, present, why, err)
		}
	}
	if _, _, err := Present(w.Host, "rkt"); err == nil {
		t.Error("an engine that is not known is not refused")
	}
}

func TestADaemonsOtherConfigurationFileIsEdited(t *testing.T) {
	w := newWorld(t)
	w.put("/srv/k3s/config.toml", "version = 3\n")
	before := w.files()
	w.install("containerd", Options{File: "/srv/k3s/config.toml"})
	if !strings.Contains(w.get("/srv/k3s/config.toml"), shimType) {
		t.Error("it is not edited")
	}
	w.install("containerd", Options{})
	if r, err := Uninstall(w.Host, "containerd", Options{File: containerdFile}); err != nil || len(r.Changes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if !strings.Contains(w.get("/srv/k3s/config.toml"), shimType) {
		t.Error("that of another file was undone too")
	}
	if w.uninstall("containerd"); !maps.Equal(before, w.files()) {
		t.Errorf("after undoing: %v", w.files())
	}
}

func TestAnOldDockerGetsAProgramAndNoShim(t *testing.T) {
	const bin, opt = "/usr/local/bin/", "/opt/gpuslice/bin/"
	for _, c := range []struct {
		version, dir string
		want         map[string]any
	}{
		{"20.10.24+dfsg1", bin, byPath},
		{"22.06.0-beta.0", bin, byPath},
		{"23.0.0", bin, byType},
		{"2.0.0-beta.24", bin, byPath}, // moby's own numbers, which are not Docker's
		{"", bin, byPath},
		{"of tomorrow", bin, byPath},
		{"29.0.1", opt, map[string]any{"path": opt + RuntimeName}}, // where containerd would not find it
	} {
		w := newWorld(t)
		w.Docker, w.Runtime, w.Shim = c.version, c.dir+RuntimeName, c.dir+ShimName
		w.install("docker", Options{})
		got, err := conf.JSON.Decode([]byte(w.get(dockerFile)))
		if err != nil {
			t.Fatal(err)
		}
		if entry, _ := conf.Lookup(got, "runtimes", name); !conf.Equal(entry, c.want) {
			t.Errorf("Docker %q, %s: %v, want %v", c.version, c.dir, entry, c.want)
		}
	}
}

func TestDockerTellsItsVersion(t *testing.T) {
	for script, want := range map[string]string{
		"echo 'Docker version 28.1.0, build 4d8c241'":   "28.1.0",
		"echo 'Docker version 20.10.24+dfsg1, build x'": "20.10.24+dfsg1",
		"echo nothing":                           "",
		"echo 'Docker version 1, build'; exit 1": "",
	} {
		dockerd := filepath.Join(t.TempDir(), "dockerd")
		if err := os.WriteFile(dockerd, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := dockerVersion(dockerd); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}
