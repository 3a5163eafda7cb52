// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/hook/annotations"
)

// advise adds to ErrMissing how to set a quota on the container's engine, which may pass no annotations.
func (b *Bundle) advise(err error) error {
	if !errors.Is(err, annotations.ErrMissing) || !b.ofDocker() {
		return err
	}
	const allow = "set default_vram and allow_env = true under [runtime] in gpuslice's configuration, then "
	const byVariable = allow + "add -e " + annotations.Env + "=4G"
	by24, known := b.docker24()
	switch {
	case b.dockerNames(filepath.Base(b.Dir)).Pod != "":
		return fmt.Errorf("%w: cri-dockerd passes no annotations: %sgive the container the variable %s=4G", annotations.ErrMissing, allow, annotations.Env)
	case !known:
		return fmt.Errorf("%w: add --annotation %s=4G; or, with a Docker before 24, which has no annotations, %s", annotations.ErrMissing, annotations.VRAM, byVariable)
	case !by24:
		return fmt.Errorf("%w: this Docker is older than 24 and has no annotations: %s", annotations.ErrMissing, byVariable)
	}
	return err
}

// ofDocker reports whether dockerd created the container: it binds its files on /etc/hostname and /etc/hosts.
func (b *Bundle) ofDocker() bool {
	for _, m := range b.GPUs.Mounts {
		if dockerContainers(m) != "" {
			return true
		}
	}
	return false
}

// dockerContainers returns Docker's directory of containers if it contains the mount's source, else "".
func dockerContainers(m specs.Mount) string {
	containers := filepath.Dir(filepath.Dir(m.Source))
	if m.Destination != "/etc/hostname" && m.Destination != "/etc/hosts" || filepath.Base(containers) != "containers" {
		return ""
	}
	return containers
}

// docker24 reports by the OCI version whether Docker 24 or newer wrote the bundle: 20.10 and 23 write 1.0.2-dev, 24 writes
// 1.1.0-rc.2.
func (b *Bundle) docker24() (is, known bool) {
	parts := strings.SplitN(b.OCIVersion, ".", 3)
	if len(parts) != 3 {
		return false, false
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major > 1 || major == 1 && minor >= 1, err == nil && err2 == nil
}
