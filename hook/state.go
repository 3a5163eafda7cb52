// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

const (
	maxState  = 4 << 20 // it repeats the annotations, and some engines put whole manifests there
	maxConfig = 16 << 20
)

// State is what the runtime writes to a hook's standard input. Its status is not read: crun says "created" at a
// moment when runc still says "creating". Nor are its annotations: see [ReadBundle].
type State struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"` // the container's init as the host sees it; absent at poststop
	Bundle string `json:"bundle"`
}

// ReadState reads and checks the state.
func ReadState(r io.Reader) (State, error) {
	var s State
	if err := decode(r, maxState, &s); err != nil {
		return s, fmt.Errorf("the container's state on standard input: %w", err)
	}
	if err := api.CheckID(s.ID); err != nil {
		return s, fmt.Errorf("the container's id: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return s, fmt.Errorf("the bundle %.256q of container %s: an absolute path is accepted", s.Bundle, s.ID)
	}
	return s, nil
}

// Bundle is what the hook needs to know of a container's config.json.
type Bundle struct {
	Rootfs      string // absolute
	Annotations map[string]string
}

// ReadBundle reads a bundle's config.json. The annotations come from there and not from the state, where the
// OCI specification has a copy of them: the root filesystem is named only there, and one source cannot
// contradict itself. Both are the engine's words, neither is the image's.
func ReadBundle(dir string) (Bundle, error) {
	var config struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
		Annotations map[string]string `json:"annotations"`
	}
	path := filepath.Join(dir, "config.json")
	// Not blocking, should it be a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Bundle{}, fmt.Errorf("the bundle: %w", err)
	}
	defer f.Close()
	if err := decode(f, maxConfig, &config); err != nil {
		return Bundle{}, fmt.Errorf("the bundle's %s: %w", path, err)
	}
	if config.Root.Path == "" {
		return Bundle{}, fmt.Errorf("the bundle's %s names no root filesystem", path)
	}
	rootfs := config.Root.Path
	if !filepath.IsAbs(rootfs) {
		rootfs = filepath.Join(dir, rootfs)
	}
	return Bundle{Rootfs: filepath.Clean(rootfs), Annotations: config.Annotations}, nil
}

// sandboxKeys say that a container is only a pod's sandbox. CRI gives the pod's annotations to it too; it runs
// nothing but pause, and must not take the quota that the pod's containers ask for.
var sandboxKeys = []string{
	"io.kubernetes.cri.container-type", // containerd
	"io.kubernetes.cri-o.ContainerType",
}

// IsSandbox says whether annotations are a CRI sandbox's.
func IsSandbox(annotations map[string]string) bool {
	for _, key := range sandboxKeys {
		if annotations[key] == "sandbox" {
			return true
		}
	}
	return false
}

// decode reads one JSON value of at most limit bytes.
func decode(r io.Reader, limit int64, into any) error {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return err
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("it is longer than %d MiB", limit>>20)
	}
	err = json.Unmarshal(text, into)
	var bad *json.UnmarshalTypeError
	if errors.As(err, &bad) {
		return fmt.Errorf("%s is a JSON %s, which does not belong there", bad.Field, bad.Value)
	}
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return nil
}
