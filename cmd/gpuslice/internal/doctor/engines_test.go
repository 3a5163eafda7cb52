// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEachEngineHasAStateAndARemedy(t *testing.T) {
	var got []string
	add := func(check string, level Level, message, do string) {
		got = append(got, check+" "+string(level)+" "+message+" -> "+do)
	}
	root := t.TempDir()
	h := Host{Root: root, LookPath: func(string) (string, error) { return "", fs.ErrNotExist }, Engines: func() []Engine {
		return []Engine{
			{Name: "docker", Reload: "systemctl reload docker"}, {Name: "podman", Registered: true}, {Name: "crio", Registered: true, Default: true},
			{Name: "containerd", Err: errors.New("containerd: line 1: what")}, {Name: "docker", Err: fs.ErrPermission},
			{Name: "docker", Registered: true, Default: true, Stale: "systemctl reload docker"},
			{Name: "docker", Registered: true, Unannotated: "Docker 20.10 has none", Variables: "set allow_env"}, {Name: "docker", Unannotated: "Docker 20.10 has none"},
		}
	}}
	check := func(want ...string) {
		t.Helper()
		got = nil
		h.engines(add)
		for i, w := range want {
			if i >= len(got) || !strings.Contains(got[i], w) {
				t.Errorf("%d: want %q in %q", i, w, got)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%q", got)
		}
	}
	all := []string{
		"engine warn docker does not know the runtime gpuslice, or with other settings than those of its default one -> `sudo gpuslice install docker`, then `sudo systemctl reload docker`",
		"engine ok podman: the runtime gpuslice is configured, and is not the default", "engine ok crio: the runtime gpuslice is configured, and is the default",
		"engine warn containerd: line 1: what -> see `gpuslice install containerd --dry-run`", "engine skip not checked: docker: you may not read",
		"engine warn docker runs with an older configuration: the runtime gpuslice was configured since, and it was not reloaded -> `sudo systemctl reload docker`",
		"engine ok docker: the runtime gpuslice is configured", "engine warn Docker 20.10 has none -> set allow_env",
		"engine warn docker does not know the runtime gpuslice", "engine ok Docker 20.10 has none -> ",
	}
	check(all...)
	put := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), os.WriteFile(filepath.Join(root, name), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("dev/nvidiactl")
	check(append(all, "toolkit warn neither NVIDIA's container toolkit nor a CDI specification is here: no engine can give a container a GPU -> install nvidia-container-toolkit, then `sudo nvidia-ctk cdi generate ")...)
	h.LookPath = func(name string) (string, error) { return "/usr/bin/" + name, nil }
	check(append(all, "toolkit ok /usr/bin/nvidia-container-runtime-hook; there is no CDI specification (`sudo nvidia-ctk cdi generate ")...)
	put("etc/cdi/nvidia.yaml")
	check(append(all, "toolkit ok CDI describes NVIDIA's devices: /etc/cdi/nvidia.yaml")...)
}
