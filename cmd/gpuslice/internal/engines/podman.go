// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// podman reads containers.conf of the distribution, then /etc/containers/containers.conf, then the drop-ins in the order of their
// names, each on top of the previous ones (containers/common, pkg/config/config.go: systemConfigs). It reads them at each start.
type podman struct{}

const (
	podmanShared = "/usr/share/containers/containers.conf"
	podmanFile   = "/etc/containers/containers.conf"
	podmanDropIn = "/etc/containers/containers.conf.d/gpuslice.conf"

	// Directories of hooks: the distribution's, which is the default, and the host's.
	hooksShared = "/usr/share/containers/oci/hooks.d"
	hooksHost   = "/etc/containers/oci/hooks.d"
)

func (podman) name() string       { return "podman" }
func (podman) programs() []string { return []string{"podman"} }
func (podman) files() []string    { return []string{podmanFile, path.Dir(podmanDropIn)} }
func (podman) restart() string    { return "" }

func (e podman) plan(v *view, o Options) (plan, error) {
	var p plan
	file := cmp.Or(o.File, podmanDropIn)
	others, err := v.layers(podmanFiles, file)
	if err != nil {
		return p, err
	}
	named, _ := others.last("engine", "runtime")
	runtime, _ := named.(string)
	p.notes = v.lowLevel(runtime)
	err = v.dropIn(&p, e, file, others, []string{"engine", "runtimes", name}, []any{v.Runtime}, func(existing any) string {
		if list, _ := existing.([]any); slices.ContainsFunc(list, isRuntime) {
			return ""
		}
		return "it does not name " + RuntimeName
	})
	if err != nil {
		return p, err
	}
	if o.Default {
		ours, err := p.ofDropIn(file)
		if err != nil {
			return p, err
		}
		if err := ours.setDefault("engine", "runtime"); err != nil {
			return p, err
		}
	}
	if o.Hooks {
		hooks, err := v.hookFiles(hooksDir(others))
		if err != nil {
			return p, err
		}
		p.edits = append(p.edits, hooks...)
		p.notes = append(p.notes, v.missing(v.Hook)...)
	}
	return p, nil
}

// hooksDir chooses the host's own directory if Podman reads it, else the last one read, as its files take precedence.
func hooksDir(others layers) string {
	chosen := hooksShared
	for _, l := range others {
		dirs, _ := conf.Lookup(l.decoded, "engine", "hooks_dir")
		list, _ := dirs.([]any)
		for _, dir := range list {
			if text, ok := dir.(string); ok && path.IsAbs(text) && chosen != hooksHost {
				chosen = path.Clean(text)
			}
		}
	}
	return chosen
}

// hookFiles returns the two files that run the hook under every runtime, for containers with our annotations. A file has one
// command for all its stages, but the hook needs its stage as argument. The names sort ours last at prestart and first at
// poststop, where a runtime stops at the first failure.
func (v *view) hookFiles(dir string) ([]edit, error) {
	var edits []edit
	for _, stage := range []struct{ file, name string }{
		{"99-gpuslice-prestart.json", "prestart"},
		{"00-gpuslice-poststop.json", "poststop"},
	} {
		e := edit{file: path.Join(dir, stage.file), format: formatWhole}
		for _, p := range []conf.Pair{
			{Key: "version", Value: "1.0.0"},
			{Key: "hook", Value: conf.Table{
				{Key: "path", Value: v.Hook},
				{Key: "args", Value: []string{HookName, stage.name}},
				{Key: "env", Value: []string{"PATH=" + strings.Join(systemPath, ":")}},
				{Key: "timeout", Value: json.Number("15")}, // seconds; the hook ends itself earlier
			}},
			{Key: "when", Value: conf.Table{{Key: "annotations", Value: conf.Table{{Key: `^gpuslice\.`, Value: ".*"}}}}},
			{Key: "stages", Value: []string{stage.name}},
		} {
			var err error
			if e.text, err = conf.JSON.Add(e.text, []string{p.Key}, p.Value); err != nil {
				return nil, err
			}
		}
		there, exists, err := v.read(e.file)
		if err != nil {
			return nil, err
		}
		if exists && !e.matches(there) && !v.force {
			return nil, fmt.Errorf("%s is there already, and is not ours: --force replaces it", e.file)
		}
		edits = append(edits, e)
	}
	return edits, nil
}

// podmanFiles returns the files that Podman reads besides the drop-in, in its order.
func podmanFiles(t tree, dropIn string) ([]string, error) {
	all := []string{podmanShared, path.Join(path.Dir(path.Dir(dropIn)), path.Base(podmanFile))}
	files, err := t.list(path.Dir(dropIn), false)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f != dropIn && strings.HasSuffix(f, ".conf") {
			all = append(all, f)
		}
	}
	return all, nil
}

func (podman) inUse(t tree, file string, _ []byte) string {
	if path.Ext(file) == ".json" {
		return "" // a hook
	}
	return lastNames(t, podmanFiles, file, "engine", "runtime")
}
