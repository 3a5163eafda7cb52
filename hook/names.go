// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"cmp"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// maxEngineFile limits an engine's file, in bytes; podman keeps one file for all containers.
const maxEngineFile = 8 << 20

// Names returns the engine's names for the container, from annotations or from the engine's state. They are informational: a name
// that cannot be read is omitted.
func (b *Bundle) Names(id string) api.Names {
	first := func(keys ...string) string {
		for _, key := range keys {
			if value := b.Annotations[key]; value != "" {
				return value
			}
		}
		return ""
	}
	names := api.Names{
		// containerd's CRI, CRI-O, nerdctl
		Name:      first("io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"),
		Pod:       first("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
		Namespace: first("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
		Image:     first("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"),
	}
	if names == (api.Names{}) {
		names = cmp.Or(b.dockerNames(id), b.podmanNames(id))
	}
	return names.Bounded()
}

// dockerNames reads the names from Docker's state, next to the files that it binds on the container's /etc/hostname and
// /etc/hosts.
func (b *Bundle) dockerNames(id string) (names api.Names) {
	for _, m := range b.GPUs.Mounts {
		// A container that shares the network of another has the other's files.
		containers := dockerContainers(m)
		if containers == "" {
			continue
		}
		var state struct {
			ID, Name string
			Config   struct{ Image string }
		}
		if !readEngineFile(filepath.Join(containers, id, "config.v2.json"), &state) || state.ID != id {
			continue
		}
		names = api.Names{Name: strings.TrimPrefix(state.Name, "/"), Image: state.Config.Image}
		// cri-dockerd encodes the names of pod and namespace; no part contains an underscore.
		if parts := strings.Split(names.Name, "_"); len(parts) == 6 && parts[0] == "k8s" {
			names.Name, names.Pod, names.Namespace = parts[1], parts[2], parts[3]
		}
		return names
	}
	return names
}

// podmanNames reads the names from Podman's storage. The bundle is GRAPHROOT/overlay-containers/ID/userdata.
func (b *Bundle) podmanNames(id string) (names api.Names) {
	if filepath.Base(b.Dir) != "userdata" || filepath.Base(filepath.Dir(b.Dir)) != id {
		return names
	}
	storage := filepath.Dir(filepath.Dir(b.Dir))
	var all []struct {
		ID       string   `json:"id"`
		Names    []string `json:"names"`
		Metadata string   `json:"metadata"`
	}
	if !readEngineFile(filepath.Join(storage, "containers.json"), &all) {
		return names
	}
	for _, c := range all {
		if c.ID != id {
			continue
		}
		if len(c.Names) > 0 {
			names.Name = c.Names[0]
		}
		var image struct {
			Name string `json:"image-name"`
		}
		if json.Unmarshal([]byte(c.Metadata), &image) == nil {
			names.Image = image.Name
		}
	}
	return names
}

// readEngineFile decodes a JSON file of a rootful engine. Users influence the path, so the file must be a regular file of root
// that no other user may write.
func readEngineFile(path string, into any) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	var is unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &is); err != nil || is.Mode&unix.S_IFMT != unix.S_IFREG || int(is.Uid) != os.Geteuid() || is.Mode&0o022 != 0 {
		return false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEngineFile+1))
	return err == nil && len(text) <= maxEngineFile && json.Unmarshal(text, into) == nil
}
