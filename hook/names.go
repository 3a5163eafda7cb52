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

// maxEngineFile is more than an engine writes of its containers; podman has all of them in one file.
const maxEngineFile = 8 << 20

// Names are what the container's engine calls it: in the annotations that the engine makes, or in the engine's own state if that is found from
// the bundle. They are for people to read, so whatever is missing or cannot be read is left out.
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
		// Those of containerd's CRI, of CRI-O, and of nerdctl.
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

// dockerNames are what Docker has of the container in its state, beside the files that it binds on some of the container's /etc.
func (b *Bundle) dockerNames(id string) (names api.Names) {
	for _, m := range b.GPUs.Mounts {
		// A container that shares another one's network has that one's files.
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
		// cri-dockerd's names say all; none of their parts has an underscore.
		if parts := strings.Split(names.Name, "_"); len(parts) == 6 && parts[0] == "k8s" {
			names.Name, names.Pod, names.Namespace = parts[1], parts[2], parts[3]
		}
		return names
	}
	return names
}

// podmanNames are what Podman's storage has of the container. The bundle is GRAPHROOT/overlay-containers/ID/userdata.
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

// readEngineFile reads a file of an engine that root runs. Where it is was found by words of whoever may start a container, so it is read
// only if it is a file of root's that nobody else may write.
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
