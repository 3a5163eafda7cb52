// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"path"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// crio reads its file and then drop-ins in the order of their paths, each on top of the configuration so far
// (pkg/config/config.go: UpdateFromDropInFile). A runtime in several files has the settings of the last file only; others stay.
//
// Annotations need no permission: CRI-O copies those of the pod and the container into config.json (internal/factory/container:
// SpecAddAnnotations), except its own ones that allowed_annotations does not list.
type crio struct{}

const (
	crioFile   = "/etc/crio/crio.conf"
	crioDropIn = "/etc/crio/crio.conf.d/99-gpuslice.conf"
)

func (crio) name() string       { return "crio" }
func (crio) programs() []string { return []string{"crio"} }
func (crio) files() []string    { return []string{crioFile, path.Dir(crioDropIn)} }
func (crio) restart() string    { return "systemctl restart crio" }

func crioRuntime(name string) []string { return []string{"crio", "runtime", "runtimes", name} }

// plan copies the settings of the default runtime, above all its monitor, since CRI-O's packages bring one outside of PATH. It
// copies nothing from a default runtime for virtual machines.
func (c crio) plan(v *view, o Options) (plan, error) {
	var p plan
	file := cmp.Or(o.File, crioDropIn)
	others, err := v.layers(crioFiles, file)
	if err != nil {
		return p, err
	}
	named, _ := others.last("crio", "runtime", "default_runtime")
	defaultName, _ := named.(string)
	if defaultName == "" { // CRI-O's own default is crun, and was runc before 1.31
		defaultName = "crun"
		if _, where := others.last(crioRuntime(defaultName)...); where == "" {
			defaultName = "runc"
		}
	}
	standard, _ := others.last(crioRuntime(defaultName)...)
	base, _ := standard.(map[string]any)
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

	err = v.dropIn(&p, c, file, others, crioRuntime(name), entry, func(existing any) string {
		table, _ := existing.(map[string]any)
		if isRuntime(table["runtime_path"]) {
			return ""
		}
		return "its runtime_path is not that of " + RuntimeName
	})
	if err != nil || !o.Default {
		return p, err
	}
	ours, err := p.ofDropIn(file)
	if err != nil {
		return p, err
	}
	return p, ours.setDefault("crio", "runtime", "default_runtime")
}

// crioFiles returns the files that CRI-O reads besides the drop-in, in its order.
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
	return lastNames(t, crioFiles, file, "crio", "runtime", "default_runtime")
}
