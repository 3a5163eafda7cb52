// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// containerd needs a configuration for CRI only: ctr, nerdctl and Docker name the shim or the runtime themselves.
//
// The entry is added to containerd's own file, as the effect of drop-ins depends on the version. 1.x (services/server/config:
// mergeConfig) merges maps by keys, and then takes each plugin's section as a whole from the file loaded last. A drop-in with one
// runtime would drop all other settings of the CRI plugin, such as SystemdCgroup. 2.x (cmd/containerd/server/config: mergeConfig)
// merges sections deeply, but reads only files listed in imports, which a configuration may lack; the default imports apply only
// on a host without any configuration.
//
// So the entry belongs into the effective section: that of the main file, or for 1.x that of the last import with one.
type containerd struct{}

const (
	containerdFile = "/etc/containerd/config.toml"
	shimType       = "io.containerd.gpuslice.v1"
	runcType       = "io.containerd.runc.v2"

	// largestVersion is the newest known version of the configuration. containerd 2.4 has 4, which left the sections edited here
	// in place.
	largestVersion = 4
	// newVersion is the version of a new file. Without one containerd assumes its own newest (1.x: 2; 2.x: 3 or 4). Each
	// containerd reads older versions, and rejects newer ones.
	newVersion = 2
	// maxImports limits the number of files to read.
	maxImports = 100
)

func (containerd) name() string       { return "containerd" }
func (containerd) programs() []string { return []string{"containerd"} }
func (containerd) files() []string    { return []string{containerdFile} }
func (containerd) restart() string    { return "systemctl restart containerd" }

func criSection(version int64) []string {
	switch version {
	case 1:
		return []string{"plugins", "cri"}
	case 2:
		return []string{"plugins", "io.containerd.grpc.v1.cri"}
	}
	return []string{"plugins", "io.containerd.cri.v1.runtime"}
}

// loaded is a file that containerd reads, without our entries.
type loaded struct {
	file    string
	version int64
	decoded map[string]any
}

func (l loaded) section() map[string]any { return conf.Tables(l.decoded, criSection(l.version)...) }

// plan copies the settings of the default runtime, except for those that select the program. A cluster depends on its
// SystemdCgroup.
func (c containerd) plan(v *view, o Options) (plan, error) {
	var p plan
	file := cmp.Or(o.File, containerdFile)
	files, err := c.load(v, file)
	if err != nil {
		return p, err
	}
	target, section := effective(files)
	e, _, err := v.open(target.file, formatTOML)
	if err != nil {
		return p, err
	}
	if len(e.text) == 0 {
		e.text = fmt.Appendf(nil, "version = %d\n", newVersion)
	}

	cri := conf.Tables(section, "containerd")
	base, implied := defaultRuntime(cri, target.version)
	entry, program := v.shimEntry(base)
	if binary, _ := conf.Tables(base, "options")["BinaryName"].(string); binary != "" {
		p.notes = v.lowLevel(binary)
	}
	if c.isDisabled(files) {
		p.notes = append(p.notes, fmt.Sprintf("disabled_plugins in %s has the CRI plugin: Kubernetes cannot use this containerd; ctr, nerdctl and Docker need no configuration of it", file))
	}

	runtimes := append(criSection(target.version), "containerd", "runtimes")
	for _, l := range files {
		if l.file == target.file {
			continue
		}
		// In 1.x a section that is replaced has no effect.
		if existing, there := conf.Lookup(l.section(), "containerd", "runtimes", name); there && l.version > 2 {
			kept, err := v.checkExisting(l.file, existing, serves)
			if err != nil {
				return p, err
			}
			if kept != "" {
				p.notes = append(p.notes, kept)
				return p, nil
			}
		}
	}
	if err := v.put(&e, append(runtimes[:len(runtimes):len(runtimes)], name), entry, serves); err != nil {
		return p, err
	}
	if implied && e.kept == "" {
		// In 1.x the runtimes of a file replace the built-in ones, as its decoder makes a new map. Then the CRI plugin would not
		// start, for lack of its default runtime.
		key := append(runtimes[:len(runtimes):len(runtimes)], "runc")
		if e.text, err = conf.TOML.Add(e.text, key, conf.Table{{Key: "runtime_type", Value: runcType}}); err != nil {
			return p, fmt.Errorf("%s: %w", e.file, err)
		}
		e.keys = append(e.keys, ownKey{Key: key, Alone: true})
	}
	if o.Default {
		if _, old := conf.Lookup(cri, "default_runtime"); old && target.version <= 2 {
			return p, fmt.Errorf("%s has a section default_runtime, which goes before default_runtime_name: make that the runtime gpuslice by hand", e.file)
		}
		if err := e.setDefault(append(criSection(target.version), "containerd", "default_runtime_name")...); err != nil {
			return p, err
		}
	}
	p.edits = append(p.edits, e)
	p.notes = append(p.notes, v.missing(program)...)
	if program != v.Runtime { // the shim runs it
		p.notes = append(p.notes, v.missing(v.Runtime)...)
	}
	return p, nil
}

// shimEntry returns the entry of the runtime, and the program that it names.
//
// It names our shim, unless the default runtime has options: then it names runc's shim, with gpuslice-runtime as its binary. For
// any other shim, containerd 1.6 silently drops options such as SystemdCgroup (pkg/cri/server/helpers.go:
// generateRuntimeOptions), and containerd 2 starts no pod with options in a user namespace.
func (v *view) shimEntry(base map[string]any) (entry conf.Table, program string) {
	options := inherited(conf.Tables(base, "options"), "BinaryName")
	if program = v.Shim; len(options) > 0 {
		program = v.Runtime
		options["BinaryName"] = program
		entry = append(entry, conf.Pair{Key: "runtime_type", Value: runcType})
	} else {
		entry = append(entry, conf.Pair{Key: "runtime_type", Value: shimType})
		if !slices.Contains(systemPath, path.Dir(program)) { // else containerd finds it in the PATH set by systemd
			entry = append(entry, conf.Pair{Key: "runtime_path", Value: program})
		}
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		entry = append(entry, conf.Pair{Key: key, Value: annotations(base[key])})
	}
	entry = append(entry, conf.NewTable(inherited(base, "runtime_type", "runtime_path", "runtime_engine", "runtime_root",
		"pod_annotations", "container_annotations", "options"))...)
	if len(options) > 0 {
		entry = append(entry, conf.Pair{Key: "options", Value: conf.NewTable(options)})
	}
	return entry, program
}

// annotations returns our annotations and those that the default runtime passes.
func annotations(base any) []any {
	list := []any{"gpuslice.*"}
	others, _ := base.([]any)
	for _, other := range others {
		if other != list[0] {
			list = append(list, other)
		}
	}
	return list
}

// serves returns the reason why an existing runtime gpuslice does not do the same as ours, or "".
func serves(existing any) string {
	table, _ := existing.(map[string]any)
	byType := table["runtime_type"] == shimType
	if !byType && (table["runtime_type"] != runcType || !isRuntime(conf.Tables(table, "options")["BinaryName"])) {
		return "it runs neither " + ShimName + " nor " + RuntimeName
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		list, _ := table[key].([]any)
		ours := func(pattern any) bool {
			text, _ := pattern.(string)
			matches, err := path.Match(text, "gpuslice.vram") // as containerd does
			return err == nil && matches
		}
		if !slices.ContainsFunc(list, ours) {
			return "its " + key + " does not pass gpuslice.vram on, so each container is refused"
		}
	}
	return ""
}

// load reads the main file and its imports, in containerd's order.
func (containerd) load(v *view, main string) ([]loaded, error) {
	var files []loaded
	seen := make(map[string]bool)
	for pending := []string{main}; len(pending) > 0; pending = pending[1:] {
		file := pending[0]
		if seen[file] {
			continue
		}
		seen[file] = true
		if len(seen) > maxImports {
			return nil, fmt.Errorf("%s: more than %d files are imported", main, maxImports)
		}
		text, exists, err := v.read(file)
		if err != nil {
			return nil, err
		}
		if !exists && file != main {
			return nil, fmt.Errorf("%s imports %s, which is not there: containerd does not start", main, file)
		}
		decoded, err := conf.TOML.Decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		l := loaded{file: file, decoded: decoded, version: 1}
		if len(files) > 0 {
			l.version = files[0].version
		}
		if len(text) == 0 && file == main {
			l.version = newVersion
		}
		if version, there := decoded["version"]; there {
			number, ok := version.(int64)
			if !ok || number < 0 || number > largestVersion {
				return nil, fmt.Errorf("%s: version = %v of the configuration is not known: 1 to %d are", file, version, largestVersion)
			}
			l.version = max(number, 1)
		}
		files = append(files, l)
		imports, err := resolveImports(v.tree(), file, decoded["imports"])
		if err != nil {
			return nil, fmt.Errorf("%s: imports: %w", file, err)
		}
		pending = append(pending, imports...)
	}
	return files, nil
}

// resolveImports returns the files that a list of imports matches: patterns, and paths relative to the file.
func resolveImports(t tree, file string, imports any) ([]string, error) {
	var all []string
	list, _ := imports.([]any)
	for _, element := range list {
		pattern, ok := element.(string)
		if !ok {
			return nil, fmt.Errorf("%v is not a path", element)
		}
		if pattern = path.Clean(pattern); !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(file), pattern)
		}
		dir, last := path.Split(pattern)
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("%q: %w", pattern, err)
		}
		if !containsMeta(pattern) {
			all = append(all, pattern)
			continue
		}
		if containsMeta(dir) {
			return nil, fmt.Errorf("%q has a pattern for a directory, which is not understood here", pattern)
		}
		files, err := t.list(path.Clean(dir), false)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if matches, _ := path.Match(last, path.Base(f)); matches {
				all = append(all, f)
			}
		}
	}
	return all, nil
}

func containsMeta(pattern string) bool { return strings.Contains(pattern, "*") } // as containerd does

// effective returns the file that the entry belongs into, and the CRI plugin's effective section.
func effective(files []loaded) (loaded, map[string]any) {
	target := files[0]
	if target.version > 2 {
		section := make(map[string]any)
		for _, l := range files {
			section = merge(section, l.section())
		}
		return target, section
	}
	for _, l := range files {
		if l.section() != nil {
			target = l
		}
	}
	return target, target.section()
}

// merge returns a copy of a, overridden by b.
func merge(a, b map[string]any) map[string]any {
	merged := maps.Clone(a)
	if merged == nil {
		merged = make(map[string]any)
	}
	for key, value := range b {
		above, ok := value.(map[string]any)
		below, both := merged[key].(map[string]any)
		if ok && both {
			merged[key] = merge(below, above)
		} else {
			merged[key] = value
		}
	}
	return merged
}

// defaultRuntime returns the settings of the default runtime if it is runc's: those of another shim do not apply to ours. implied
// is true if the file names no runtime, so the default one is built in.
func defaultRuntime(cri map[string]any, version int64) (base map[string]any, implied bool) {
	runtimes := conf.Tables(cri, "runtimes")
	defaultName, _ := cri["default_runtime_name"].(string)
	if defaultName == "" {
		defaultName = "runc"
	}
	old := conf.Tables(cri, "default_runtime") // 1.x prefers it
	if kind, _ := old["runtime_type"].(string); version <= 2 && kind != "" {
		base = old
	} else {
		base = conf.Tables(runtimes, defaultName)
		implied = version <= 2 && len(runtimes) == 0 && defaultName == "runc"
	}
	if base["runtime_type"] != runcType && base["runtime_type"] != "io.containerd.runc.v1" {
		base = conf.Tables(runtimes, "runc")
	}
	return base, implied
}

func (c containerd) disabled(t tree) bool {
	files, err := c.load(&view{Host: Host{Root: string(t)}, record: &record{}}, containerdFile)
	return err == nil && c.isDisabled(files)
}

func (containerd) isDisabled(files []loaded) bool {
	for _, l := range files {
		list, _ := l.decoded["disabled_plugins"].([]any)
		for _, plugin := range list {
			switch plugin {
			case "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime":
				return true
			}
		}
	}
	return false
}

func (containerd) inUse(_ tree, file string, text []byte) string {
	decoded, err := conf.TOML.Decode(text)
	if err != nil {
		return ""
	}
	for version := int64(1); version <= largestVersion; version++ {
		if conf.Tables(decoded, append(criSection(version), "containerd")...)["default_runtime_name"] == name {
			return "default_runtime_name in " + file
		}
	}
	return ""
}
