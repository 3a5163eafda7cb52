// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// The shipped examples are the result on a host with unconfigured engines, or with only a version in the configuration.
func TestShippedExamplesEqualTheWrittenFiles(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "..", "configs", "engines")
	for _, c := range []struct{ example, engine, file, before string }{
		{"docker/daemon.json", "docker", dockerFile, ""},
		{"containerd/config.toml", "containerd", containerdFile, ""},
		{"containerd/config-v3.toml", "containerd", containerdFile, "version = 3\n"},
		{"crio/99-gpuslice.conf", "crio", crioDropIn, ""},
		{"podman/gpuslice.conf", "podman", podmanDropIn, ""},
		{"podman/99-gpuslice-prestart.json", "podman", hooksShared + "/99-gpuslice-prestart.json", ""},
		{"podman/00-gpuslice-poststop.json", "podman", hooksShared + "/00-gpuslice-poststop.json", ""},
	} {
		t.Run(c.example, func(t *testing.T) {
			w := newWorld(t)
			if c.before != "" {
				w.put(c.file, c.before)
			}
			w.install(c.engine, Options{Hooks: c.engine == "podman"})
			got := w.get(c.file)
			if *update {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, c.example)), 0o755), os.WriteFile(filepath.Join(dir, c.example), []byte(got), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(filepath.Join(dir, c.example))
			if err != nil || got != string(want) {
				t.Errorf("%v: %s is written, the example has %s", err, got, want)
			}
		})
	}
}

// FuzzInstall installs into any text that a decoder accepts, and undoes it.
func FuzzInstall(f *testing.F) {
	for _, g := range goldens() {
		if text, err := os.ReadFile(filepath.Join("testdata", g.engine, g.input)); err == nil {
			f.Add(g.engine == "docker", text)
		}
	}
	f.Fuzz(func(t *testing.T, docker bool, text []byte) {
		g := golden{engine: "containerd", file: containerdFile}
		if docker {
			g = golden{engine: "docker", file: dockerFile}
		}
		was, err := g.format().Decode(text)
		if err != nil {
			return
		}
		w := newWorld(t)
		w.put(g.file, string(text))
		r, err := Install(w.Host, g.engine, Options{})
		if now := w.get(g.file); err != nil && now != string(text) {
			t.Fatalf("the edit was refused (%v), but the file is now %q", err, now)
		}
		if err != nil || r.State != Done {
			return
		}
		got, err := g.format().Decode([]byte(w.get(g.file)))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range was {
			if key != "plugins" && key != "runtimes" && !conf.Equal(got[key], value) {
				t.Errorf("%q was %v and is %v", key, value, got[key])
			}
		}
		if w.uninstall(g.engine); w.get(g.file) != string(text) {
			t.Errorf("after undoing %q, before %q", w.get(g.file), text)
		}
	})
}
