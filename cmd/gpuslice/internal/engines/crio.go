// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"path"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// crio reads drop-ins after its file, in the order of their paths, each on top of the configuration so far
// (pkg/config/config.go: UpdateFromDropInFile): a runtime that is there in two files is that of the later
// one as a whole, and the others stay.
//
// Annotations need no permission: CRI-O copies all of the pod's and of the container's into config.json
// (internal/factory/container: SpecAddAnnotations), but for those of its own that allowed_annotations does not list.
type crio struct{}

const (
	crioFile   = "/etc/crio/crio.conf"
	crioDropIn = "/etc/crio/crio.conf.d/99-gpuslice.conf"
)

func (crio) name() string       { return "crio" }
func (crio) programs() []string { return []string{"crio"} }
func (crio) files() []string    { return []string{crioFile, path.Dir(crioDropIn)} }
func (crio) restart() string    { return "systemctl restart crio" }

const dropInHeader = "# Written by gpuslice install %s, which also takes it back: gpuslice uninstall %s\n"

var crioRuntimes = []string{"crio", "runtime", "runtimes"}

// plan gives the runtime what the default one has: its monitor above all, since the packages of CRI-O bring one that is not in PATH.
// A default runtime that is a virtual machine's has nothing that would fit.
func (crio) plan(v *view, o Options) (plan, error) {
	var p plan
	file := crioDropIn
	if o.File != "" {
		file = o.File
	}
	defaultName := ""
	runtimes := make(map[string]any)
	where := make(map[string]string)
	others, err := crioFiles(v.tree(), file)
	if err != nil {
		return p, err
	}
	for _, other := range others {
		decoded, err := v.decode(other, conf.TOML)
		if err != nil {
			return p, err
		}
		if n, ok := conf.Tables(decoded, "crio", "runtime")["default_runtime"].(string); ok {
			defaultName = n
		}
		for n, runtime := range conf.Tables(decoded, crioRuntimes...) {
			runtimes[n], where[n] = runtime, other
		}
	}
	if defaultName == "" { // CRI-O's own is crun, and was runc before 1.31
		if defaultName = "crun"; runtimes[defaultName] == nil {
			defaultName = "runc"
		}
	}
	base := conf.Tables(runtimes, defaultName)
	kind, _ := base["runtime_type"].(string)
	if kind == "" {
		kind = "oci"
	}
	if kind != "oci" && kind != "pod" {
		base, kind = nil, "oci"
	}
	root, _ := base["runtime_root"].(string)
	if root == "" {
		root = "/run/runc"
	}
	entry := conf.Table{{Key: "runtime_path", Value: v.Runtime}, {Key: "runtime_type", Value: kind}, {Key: "runtime_root", Value: root}}
	entry = append(entry, conf.NewTable(inherited(base, "runtime_path", "runtime_type", "runtime_root", "runtime_config_path",
		"platform_runtime_paths", "inherit_default_runtime", "runtime_pull_image"))...)
	if runtime, _ := base["runtime_path"].(string); runtime != "" {
		p.notes = v.lowLevel(runtime)
	}

	serves := func(existing any) string {
		table, _ := existing.(map[string]any)
		if isRuntime(table["runtime_path"]) {
			return ""
		}
		return "its runtime_path is not that of " + RuntimeName
	}
	if existing, there := runtimes[name]; there {
		kept, err := v.elsewhere(where[name], existing, serves)
		if err != nil {
			return p, err
		}
		if kept != "" {
			p.notes = append(p.notes, kept)
			return p, nil
		}
	}
	e, err := dropIn(v, file, "crio")
	if err != nil {
		return p, err
	}
	if err := v.put(&e, append(crioRuntimes[:3:3], name), entry, serves); err != nil {
		return p, err
	}
	p.edits = append(p.edits, e)
	p.notes = append(p.notes, v.missing(v.Runtime)...)
	return p, nil
}

// crioFiles are the files that CRI-O reads beside the drop-in, in its order.
func crioFiles(t tree, dropIn string) ([]string, error) {
	all := []string{path.Join(path.Dir(path.Dir(dropIn)), path.Base(crioFile))}
	files, err := t.list(path.Dir(dropIn), true)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f != dropIn {
			all = append(all, f)
		}
	}
	return all, nil
}

func (crio) inUse(t tree, file string, _ []byte) string {
	files, err := crioFiles(t, file)
	if err != nil {
		return ""
	}
	return lastNames(t, files, "default_runtime", "crio", "runtime")
}

// lastNames says where our runtime is the value of a key of a table, if the last of the files that has the key says so.
func lastNames(t tree, files []string, key string, table ...string) (used string) {
	for _, file := range files {
		text, _, err := t.read(file)
		if err != nil {
			continue
		}
		decoded, err := conf.TOML.Decode(text)
		if err != nil {
			continue
		}
		if n, ok := conf.Tables(decoded, table...)[key].(string); ok {
			if used = ""; n == name {
				used = key + " in " + file
			}
		}
	}
	return used
}

// dropIn begins a file of our own.
func dropIn(v *view, file, engine string) (edit, error) {
	e, _, err := v.start(file, formatTOML)
	if len(e.text) == 0 {
		e.text = fmt.Appendf(nil, dropInHeader, engine, engine)
	}
	return e, err
}
