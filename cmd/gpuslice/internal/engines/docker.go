// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// docker has one file and no drop-ins. dockerd takes a missing or empty file for an empty object
// (daemon/config/config.go: getConflictFreeConfiguration), and reads runtimes again when it is told to reload.
type docker struct{}

const dockerFile = "/etc/docker/daemon.json"

func (docker) name() string       { return "docker" }
func (docker) programs() []string { return []string{"dockerd"} }
func (docker) files() []string    { return []string{dockerFile} }
func (docker) restart() string    { return "systemctl reload docker" }

// plan gives the runtime the arguments of the default one, if that is a program too. (The one that Docker brings has none, and its
// options come from dockerd itself.) A runtime by path is one that runc's shim runs, in every version of
// Docker; one by type would need Docker 23, and dockerd gives it none of the options that it gives runc.
func (docker) plan(v *view, o Options) (plan, error) {
	var p plan
	file := dockerFile
	if o.File != "" {
		file = o.File
	}
	e, decoded, err := v.start(file, formatJSON)
	if err != nil {
		return p, err
	}
	entry := conf.Table{{Key: "path", Value: v.Runtime}}
	if value, there := decoded["default-runtime"]; there {
		standard, ok := value.(string)
		if !ok {
			return p, fmt.Errorf("%s: default-runtime is not a name", file)
		}
		runtime := conf.Tables(decoded, "runtimes", standard)
		path, _ := runtime["path"].(string)
		if args, ok := runtime["runtimeArgs"].([]any); ok && path != "" && len(args) > 0 {
			entry = append(entry, conf.Pair{Key: "runtimeArgs", Value: args})
		}
		p.notes = v.lowLevel(path)
	}
	err = v.put(&e, []string{"runtimes", name}, entry, func(existing any) string {
		table, _ := existing.(map[string]any)
		if isRuntime(table["path"]) || table["runtimeType"] == shimType {
			return ""
		}
		return "its path is not that of " + RuntimeName
	})
	if err != nil {
		return p, err
	}
	p.edits = append(p.edits, e)
	p.notes = append(p.notes, v.missing(v.Runtime)...)
	return p, nil
}

func (docker) inUse(_ tree, file string, text []byte) string {
	decoded, err := conf.JSON.Decode(text)
	if err == nil && decoded["default-runtime"] == name {
		return "default-runtime in " + file
	}
	return ""
}
