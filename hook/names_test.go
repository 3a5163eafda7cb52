// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/gpus"
)

func TestNamesAreThoseOfTheEnginesAnnotations(t *testing.T) {
	for engine, c := range map[string]struct {
		annotations map[string]string
		want        api.Names
	}{
		"containerd": {map[string]string{
			"io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.sandbox-name": "train-0",
			"io.kubernetes.cri.sandbox-namespace": "team", "io.kubernetes.cri.image-name": "docker.io/cuda:13",
		}, api.Names{Name: "main", Pod: "train-0", Namespace: "team", Image: "docker.io/cuda:13"}},
		"cri-o": {map[string]string{
			"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "train-0",
			"io.kubernetes.pod.namespace": "team", "io.kubernetes.cri-o.ImageName": "quay.io/cuda:13",
		}, api.Names{Name: "main", Pod: "train-0", Namespace: "team", Image: "quay.io/cuda:13"}},
		"nerdctl":   {map[string]string{"nerdctl/name": "train", "nerdctl/namespace": "default"}, api.Names{Name: "train"}},
		"nobody":    {map[string]string{"gpuslice.vram": "4G"}, api.Names{}},
		"a villain": {map[string]string{"nerdctl/name": "a\x1b[2J"}, api.Names{Name: `a\x1b[2J`}},
	} {
		b := Bundle{Dir: "/run/bundle", Annotations: c.annotations}
		if got := b.Names("c1"); got != c.want {
			t.Errorf("%s: got %+v, want %+v", engine, got, c.want)
		}
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestNamesOfDockerAreInItsState(t *testing.T) {
	const state = `{"ID": "c1", "Name": "/train", "Config": {"Image": "cuda:13", "Labels": {}}, "Path": 7}`
	root := t.TempDir()
	file := filepath.Join(root, "containers", "c1", "config.v2.json")
	mount := func(source string) Bundle {
		return Bundle{GPUs: gpus.Spec{Mounts: []specs.Mount{
			{Destination: "/etc/resolv.conf", Source: "/elsewhere/resolv.conf"}, {Destination: "/etc/hostname", Source: filepath.Join(root, source)},
		}}}
	}
	own, shared := mount("containers/c1/hostname"), mount("containers/other/hostname")
	want := api.Names{Name: "train", Image: "cuda:13"}

	write(t, file, state, 0o600)
	for what, b := range map[string]Bundle{"its own network": own, "another container's network": shared} {
		if got := b.Names("c1"); got != want {
			t.Errorf("%s: %+v", what, got)
		}
	}
	write(t, file, `{"ID": "c1", "Name": "/k8s_main_train-0_team_4cad64d0-7a36-452a-8a08-bd3a694cdad5_0", "Config": {"Image": "sha256:12"}}`, 0o600)
	if got := own.Names("c1"); got != (api.Names{Name: "main", Pod: "train-0", Namespace: "team", Image: "sha256:12"}) {
		t.Errorf("cri-dockerd: %+v", got)
	}
	for what, c := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"another's": {`{"ID": "c2", "Name": "/train"}`, 0o600}, "not JSON": {`{"ID": "c1"`, 0o600}, "anybody's to write": {state, 0o666},
	} {
		write(t, file, c.text, c.mode)
		if got := own.Names("c1"); got != (api.Names{}) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if err := os.Rename(file, filepath.Join(root, "real")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "real"), file); err != nil {
		t.Fatal(err)
	}
	if got := own.Names("c1"); got != (api.Names{}) {
		t.Errorf("a link: %+v", got)
	}
}

func TestNamesOfPodmanAreInItsStorage(t *testing.T) {
	storage := filepath.Join(t.TempDir(), "overlay-containers")
	b := Bundle{Dir: filepath.Join(storage, "c1", "userdata")}
	write(t, filepath.Join(storage, "containers.json"),
		`[{"id": "c0", "names": ["other"]}, {"id": "c1", "names": ["train"], "image": "ab", "metadata": "{\"image-name\":\"localhost/cuda:13\",\"name\":\"train\"}"}]`, 0o600)
	if got := b.Names("c1"); got != (api.Names{Name: "train", Image: "localhost/cuda:13"}) {
		t.Errorf("%+v", got)
	}
	if got := b.Names("c2"); got != (api.Names{}) {
		t.Errorf("a bundle of another's: %+v", got)
	}
}
