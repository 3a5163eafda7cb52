// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/hook/annotations"
)

func TestAdviceInARefusalFitsTheEngine(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "containers", "pod", "config.v2.json"), `{"ID": "pod", "Name": "/k8s_main_train-0_team_4cad64d0_0"}`, 0o600)
	const (
		annotation = "annotation gpuslice.vram"
		flag       = "--annotation gpuslice.vram=4G"
		allow      = "allow_env = true"
		variable   = "-e GPUSLICE_VRAM=4G"
	)
	docker := filepath.Join(root, "containers", "c1", "hostname")
	for _, c := range []struct {
		name, id, oci, hostname string
		env                     []string
		says, saysNot           []string
	}{
		{name: "Docker 20.10", oci: "1.0.2-dev", hostname: docker, says: []string{"older than 24", allow, variable}, saysNot: []string{"--annotation", annotation}},
		{name: "Docker 20.10, with the variable", oci: "1.0.2-dev", hostname: docker, env: []string{"GPUSLICE_VRAM=2G"}, says: []string{allow, variable}, saysNot: []string{"--annotation", annotation}},
		{name: "Docker 24", oci: "1.1.0-rc.2", hostname: docker, says: []string{annotation}, saysNot: []string{allow}},
		{name: "Docker 29", oci: "1.3.0", hostname: docker, says: []string{annotation}, saysNot: []string{allow}},
		{name: "Docker without a version", hostname: docker, says: []string{flag, "before 24", allow, variable}},
		{name: "Docker, version not understood", oci: "1.x.0", hostname: docker, says: []string{flag, "before 24", allow, variable}},
		{name: "cri-dockerd", id: "pod", oci: "1.3.0", hostname: docker, says: []string{"cri-dockerd", allow, "variable GPUSLICE_VRAM=4G"}, saysNot: []string{"--annotation", annotation}},
		{name: "Podman", oci: "1.0.2", hostname: "/run/overlay-containers/c1/userdata/hostname", says: []string{annotation}, saysNot: []string{allow}},
		{name: "containerd", oci: "1.0.2-dev", says: []string{annotation}, saysNot: []string{allow}},
		{name: "containerd, with the variable", env: []string{"GPUSLICE_VRAM=2G"}, says: []string{annotation, "allow_env"}},
	} {
		if c.id == "" {
			c.id = "c1"
		}
		mounts, env := "", `"A=b"`
		if c.hostname != "" {
			mounts = fmt.Sprintf(`{"destination": "/etc/hostname", "source": %q}`, c.hostname)
		}
		for _, v := range c.env {
			env += fmt.Sprintf(", %q", v)
		}
		text := fmt.Sprintf(`{"ociVersion": %q, "root": {"path": "r"}, "mounts": [%s], "process": {"env": [%s]}}`, c.oci, mounts, env)
		b, err := ParseBundle(filepath.Join("/run", c.id, "config.json"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Request(annotations.Policy{})
		if !errors.Is(err, annotations.ErrMissing) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		said := Sentence(err)
		for _, s := range c.says {
			if !strings.Contains(said, s) {
				t.Errorf("%s: %q does not say %q", c.name, said, s)
			}
		}
		for _, s := range c.saysNot {
			if strings.Contains(said, s) {
				t.Errorf("%s: %q says %q", c.name, said, s)
			}
		}
	}
}
