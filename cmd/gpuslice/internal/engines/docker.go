// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// docker has one file and no drop-ins. dockerd treats a missing or empty file as an empty object (daemon/config/config.go:
// getConflictFreeConfiguration), and reads runtimes again on a reload.
type docker struct{}

const dockerFile = "/etc/docker/daemon.json"

func (docker) name() string       { return "docker" }
func (docker) programs() []string { return []string{"dockerd"} }
func (docker) files() []string    { return []string{dockerFile} }
func (docker) restart() string    { return "systemctl reload docker" }

// shimVersion is the first major version of Docker that accepts shims as runtimes (API 1.42).
const shimVersion = 23

func dockerVersion(dockerd string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	said, err := exec.CommandContext(ctx, dockerd, "--version").Output() // "Docker version 28.1.0, build 4d8c241"
	_, version, found := strings.Cut(string(said), " version ")
	if err != nil || !found {
		return ""
	}
	version, _, _ = strings.Cut(version, ",")
	return strings.TrimSpace(version)
}

// entry returns our shim if this Docker accepts one and containerd finds it. The shim starts a container with four fewer programs
// than gpuslice-runtime, which runs before runc in each step. Every Docker accepts gpuslice-runtime by its path.
//
// The runtime gets the arguments of the default one if that is a program, too. (Docker's built-in one has none. dockerd sets its
// options itself, but not for a shim; package shim/containerd detects SystemdCgroup.)
func (docker) entry(v *view, standard map[string]any) conf.Table {
	path, _ := standard["path"].(string)
	args, _ := standard["runtimeArgs"].([]any)
	if path != "" && len(args) > 0 {
		return conf.Table{{Key: "path", Value: v.Runtime}, {Key: "runtimeArgs", Value: args}}
	}
	major, _, _ := strings.Cut(v.Docker, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= shimVersion && slices.Contains(systemPath, filepath.Dir(v.Shim)) {
		return conf.Table{{Key: "runtimeType", Value: shimType}}
	}
	return conf.Table{{Key: "path", Value: v.Runtime}}
}

func (d docker) plan(v *view, o Options) (plan, error) {
	var p plan
	file := cmp.Or(o.File, dockerFile)
	e, decoded, err := v.open(file, formatJSON)
	if err != nil {
		return p, err
	}
	var standard map[string]any
	if value, there := decoded["default-runtime"]; there {
		named, ok := value.(string)
		if !ok {
			return p, fmt.Errorf("%s: default-runtime is not a name", file)
		}
		standard = conf.Tables(decoded, "runtimes", named)
		path, _ := standard["path"].(string)
		p.notes = v.lowLevel(path)
	}
	entry := d.entry(v, standard)
	err = v.put(&e, []string{"runtimes", name}, entry, func(existing any) string {
		table, _ := existing.(map[string]any)
		if isRuntime(table["path"]) || table["runtimeType"] == shimType {
			return ""
		}
		return "it runs neither " + ShimName + " nor " + RuntimeName
	})
	if err != nil {
		return p, err
	}
	if o.Default {
		if err := e.setDefault("default-runtime"); err != nil {
			return p, err
		}
	}
	p.edits = append(p.edits, e)
	program := v.Runtime
	if entry[0].Key == "runtimeType" {
		program = v.Shim
	}
	p.notes = append(p.notes, v.missing(program)...)
	return p, nil
}

func (docker) inUse(_ tree, file string, text []byte) string {
	decoded, err := conf.JSON.Decode(text)
	if err == nil && decoded["default-runtime"] == name {
		return "default-runtime in " + file
	}
	return ""
}
