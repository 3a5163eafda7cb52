// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

func TestAnEngineWithoutAnnotationsIsFound(t *testing.T) {
	for _, c := range []struct {
		engine, dockerd, client string
		running                 bool
		version                 string // named in the note; "" if the engine passes annotations, or that is unknown
	}{
		{"docker", "20.10.24+dfsg1", "1.41\n", true, "Docker 20.10.24+dfsg1"},
		{"docker", "20.10.24+dfsg1", "1.41\n", false, "Docker 20.10.24+dfsg1"},
		{"docker", "23.0.6", "1.42\n", true, "Docker 23.0.6"},
		{"docker", "1.13.1", "", false, "Docker 1.13.1"},
		{"docker", "20.10.24", "1.48\n", false, "Docker 20.10.24"},        // a new client without a daemon
		{"docker", "", "1.41\n", true, "Docker with API 1.41"},            // a new client with an old daemon elsewhere
		{"docker", "28.0.1", "1.41\n", true, "Docker with API 1.41"},      // an old client
		{"docker", "2.0.0-beta.24", "1.41", true, "Docker with API 1.41"}, // moby's own numbers
		{"docker", "2.0.0-beta.24", "1.56\n", true, ""},
		{"docker", "24.0.0", "1.43\n", true, ""},
		{"docker", "29.0.1", "1.52\n", false, ""},
		{"docker", "", "", false, ""},
		{"docker", "", "4.3.1\n", true, ""}, // Podman under the name docker
		{"docker", "of tomorrow", "of tomorrow\n", true, ""},
		{"podman", "20.10.24", "1.41\n", true, ""},
	} {
		u := CannotAnnotate(Host{Root: t.TempDir(), Docker: c.dockerd}, c.engine, func(string, ...string) ([]byte, error) {
			if !c.running {
				return []byte(c.client), errors.New("cannot connect")
			}
			return []byte(c.client), nil
		})
		if (u == nil) != (c.version == "") || u != nil && !strings.HasPrefix(u.Why, c.version+" has no --annotation") {
			t.Errorf("%+v: %+v", c, u)
		}
	}
}

func TestNoteOnOldDockerSaysWhetherVariablesAreRead(t *testing.T) {
	old := func(string, ...string) ([]byte, error) { return []byte("1.41\n"), nil }
	for _, c := range []struct {
		configuration string
		says          string // the note
		do            bool
	}{
		{"", "warning: Docker 20.10.24 has no --annotation, which 24 has: -e GPUSLICE_VRAM=4G stands for it; to have gpuslice read it, set default_vram, " +
			`such as "8G", and allow_env = true under [runtime] in /etc/gpuslice/config.toml`, true},
		{"[runtime]\ndefault_vram = \"8G\"\n", "warning: ", true},
		{"[runtime]\nallow_env = true\n", "warning: ", true}, // rejected
		{"[runtime]\ndefault_vram = \"6G\"\nallow_env = true\n", `Docker 20.10.24 has no --annotation, which 24 has: -e GPUSLICE_VRAM=4G stands for it, up to default_vram = "6G"`, false},
	} {
		w := newWorld(t)
		w.Docker = "20.10.24"
		if c.configuration != "" {
			w.put(api.DefaultConfig, c.configuration)
		}
		u := CannotAnnotate(w.Host, "docker", old)
		if u == nil || !strings.HasPrefix(u.Note(), c.says) || (u.Do != "") != c.do {
			t.Errorf("%q: %+v", c.configuration, u)
		}
	}
}
