// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/config"
)

// Docker has `--annotation` since version 24 and API 1.43. A client's API is at most that of its daemon.
const (
	annotatingVersion = 24
	annotatingAPI     = 43
)

// Unannotated explains how to set a quota with an engine that passes no annotations.
type Unannotated struct {
	Why string // the engine, its version, and the alternative to the annotation
	Do  string // what makes gpuslice read the alternative; "" if it does already
}

// Note returns both in one line.
func (u Unannotated) Note() string {
	if u.Do == "" {
		return u.Why
	}
	return Warning + u.Why + "; to have gpuslice read it, " + u.Do
}

// CannotAnnotate returns the alternative to annotations, or nil if the engine passes them or that is unknown. ask runs a program
// of this machine and returns its output, so h must not be an image.
func CannotAnnotate(h Host, engineName string, ask func(program string, args ...string) ([]byte, error)) *Unannotated {
	if engineName != (docker{}).name() {
		return nil
	}
	// Without a daemon the command fails, but prints its own version.
	said, _ := ask("docker", "version", "--format", "{{.Client.APIVersion}}")
	version := strings.TrimSpace(string(said))
	switch minor, isAPI := strings.CutPrefix(version, "1."); {
	case isOldDocker(h.Docker):
		version = h.Docker
	case isAPI && isBelow(minor, annotatingAPI):
		version = "with API " + version
	default:
		return nil
	}
	u := &Unannotated{
		Why: fmt.Sprintf("Docker %s has no --annotation, which %d has: -e GPUSLICE_VRAM=4G stands for it", version, annotatingVersion),
		Do:  fmt.Sprintf(`set default_vram, such as "8G", and allow_env = true under [runtime] in %s`, api.DefaultConfig),
	}
	if real, err := h.tree().resolve(api.DefaultConfig); err == nil {
		if c, err := config.Load(real); err == nil && c.Runtime.AllowEnv {
			u.Why += fmt.Sprintf(", up to default_vram = %q", c.Runtime.DefaultVRAM)
			u.Do = ""
		}
	}
	return u
}

// isOldDocker reports whether version is one of Docker before annotations: 1 to 23. Moby's own numbers begin with 2.
func isOldDocker(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	return isBelow(major, annotatingVersion) && (major == "1" || !isBelow(major, 17))
}

func isBelow(number string, limit int) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n < limit
}
