// SPDX-License-Identifier: Apache-2.0

// Package engines registers the runtime gpuslice with Docker, containerd, CRI-O and Podman, and removes it again.
//
// It owns one entry in the configuration of each, and a record of its changes (record.go). The entry is a drop-in if the engine
// supports that; otherwise it is added to the engine's file, without changing another byte (package conf). The package must never
// restart an engine, and never leave a configuration that keeps one from starting. It rejects a configuration that it does not
// understand, unchanged.
package engines

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
	"github.com/gpuslice/gpuslice/daemon/config"
)

const name = "gpuslice"

// Programs that configurations name.
const (
	RuntimeName = "gpuslice-runtime"
	ShimName    = "containerd-shim-gpuslice-v1"
	HookName    = "gpuslice-hook"
)

// Warning begins a note about something missing.
const Warning = "warning: "

// systemPath is the PATH of engines run by systemd, also searched for the programs of an image.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// defaultDir is the assumed directory of missing programs.
const defaultDir = "/usr/local/bin"

// Host is a host with engines to configure.
type Host struct {
	Root string // "/", or the root of an image; all other paths are beneath it
	// Absolute paths of the programs.
	Runtime, Shim, Hook string
	// Docker is the version of the dockerd that will read the configuration, such as "28.1.0"; "" if unknown.
	Docker string
}

// NewHost returns the host at root. find returns the path of a program of gpuslice on this machine; it is not called for an
// image.
func NewHost(root string, find func(program string) (string, error)) (Host, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return Host{}, err
	}
	h := Host{Root: root}
	for program, at := range map[string]*string{RuntimeName: &h.Runtime, ShimName: &h.Shim, HookName: &h.Hook} {
		*at = h.program(program)
		if root != "/" {
			continue
		}
		if found, err := find(program); err == nil {
			*at = found
		}
	}
	if root == "/" {
		h.Docker = dockerVersion("dockerd")
	}
	return h, nil
}

// program returns the path of a program in the system's PATH, or else its standard path.
func (h Host) program(program string) string {
	if found, ok := h.lookPath(program); ok {
		return found
	}
	return path.Join(defaultDir, program)
}

func (h Host) lookPath(program string) (string, bool) {
	for _, dir := range systemPath {
		if h.tree().executable(path.Join(dir, program)) {
			return path.Join(dir, program), true
		}
	}
	return "", false
}

func (h Host) tree() tree { return tree(h.Root) }

// missing returns a note if a program is not at the path in the configuration.
func (h Host) missing(program string) []string {
	if h.tree().executable(program) {
		return nil
	}
	return []string{fmt.Sprintf(Warning+"%s is not there: install gpuslice before you use the runtime", program)}
}

// lowLevel returns a note if an engine's default runtime is neither runc nor crun of the system, as gpuslice-runtime would run
// one of these instead. runtime is a path or a name, as in the engine's configuration.
func (h Host) lowLevel(runtime string) []string {
	dir, base := path.Split(runtime)
	standard := base == "runc" || base == "crun"
	for _, d := range systemPath {
		if standard && (dir == "" || path.Clean(dir) == d) {
			return nil
		}
	}
	if runtime == "" || base == RuntimeName {
		return nil
	}
	if real, err := h.tree().resolve(api.DefaultConfig); err == nil {
		if c, err := config.Load(real); err == nil && len(c.Runtime.Runtimes) > 0 && c.Runtime.Runtimes[0] == runtime {
			return nil
		}
	}
	return []string{fmt.Sprintf("its default runtime is %s: for gpuslice to run that too, write runtimes = [%q] under [runtime] in %s",
		runtime, runtime, api.DefaultConfig)}
}

// Options are the operator's choices.
type Options struct {
	File  string // instead of the engine's standard file; absolute, beneath the host's root
	Hooks bool   // Podman: also bind the hook to the annotation, under every runtime
	// Default makes gpuslice the runtime of containers that name none.
	Default bool
	Force   bool // replace an entry made by another program or by hand
	DryRun  bool // change nothing
}

type engine interface {
	name() string
	// programs and files indicate that the engine is installed.
	programs() []string
	files() []string
	// restart returns the command that applies a change; "" if none is needed.
	restart() string
	// plan returns the new configuration.
	plan(v *view, o Options) (plan, error)
	// inUse returns the place, in text or elsewhere, that makes gpuslice the default runtime, or "". An engine does not start
	// without its default runtime.
	inUse(t tree, file string, text []byte) string
}

var all = []engine{docker{}, containerd{}, crio{}, podman{}}

// Names returns the names of all engines.
func Names() []string {
	var names []string
	for _, e := range all {
		names = append(names, e.name())
	}
	return names
}

func find(name string) (engine, error) {
	for _, e := range all {
		if e.name() == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("there is no engine %q: docker, containerd, crio, podman and all are known", name)
}

// Present reports whether an engine is on the host and needs a configuration; if not, why has the reason to leave it out.
func Present(h Host, name string) (present bool, why string, err error) {
	e, err := find(name)
	if err != nil {
		return false, "", err
	}
	here := false
	for _, program := range e.programs() {
		_, found := h.lookPath(program)
		here = here || found
	}
	for _, file := range e.files() {
		here = here || h.tree().exists(file)
	}
	if !here {
		return false, fmt.Sprintf("neither %s nor %s is on this machine", e.programs()[0], e.files()[0]), nil
	}
	if c, ok := e.(containerd); ok && c.disabled(h.tree()) {
		return false, "its CRI plugin is disabled; ctr, nerdctl and Docker need no configuration of containerd", nil
	}
	return true, "", nil
}

type plan struct {
	edits []edit
	notes []string
}

type edit struct {
	file   string
	format string // of the record
	keys   []ownKey
	text   []byte
	kept   string // note that a foreign entry does the same as ours; "" if there is none
}

// view shows an engine the files without our entries.
type view struct {
	Host
	record *record
	force  bool
}

// read returns a file without our entry. An entry that was changed since is no longer ours and stays, unless force replaces it.
func (v *view) read(file string) (text []byte, exists bool, err error) {
	text, exists, err = v.tree().read(file)
	f := v.record.file(file)
	if err != nil || f == nil || !exists {
		return text, exists, err
	}
	if !v.force && f.changedByHand(text) {
		return text, exists, nil
	}
	return f.undo(text)
}

// open begins an edit of a file, and decodes the file without our entry.
func (v *view) open(file, format string) (edit, map[string]any, error) {
	text, _, err := v.read(file)
	if err != nil {
		return edit{}, nil, err
	}
	decoded, err := formats[format].Decode(text)
	if err != nil {
		return edit{}, nil, fmt.Errorf("%s: %w", file, err)
	}
	return edit{file: file, format: format, text: text}, decoded, nil
}

// put adds an entry to the file, unless an existing one is kept.
func (v *view) put(e *edit, key []string, value any, serves func(existing any) string) error {
	f := formats[e.format]
	decoded, err := f.Decode(e.text)
	if err != nil {
		return fmt.Errorf("%s: %w", e.file, err)
	}
	if existing, there := conf.Lookup(decoded, key...); there {
		if e.kept, err = v.checkExisting(e.file, existing, serves); err != nil || e.kept != "" {
			return err
		}
		if e.text, err = f.Remove(e.text, key); err != nil {
			return fmt.Errorf("%s: %w", e.file, err)
		}
	}
	if e.text, err = f.Add(e.text, key, value); err != nil {
		return fmt.Errorf("%s: %w", e.file, err)
	}
	e.keys = append(e.keys, ownKey{Key: key})
	return nil
}

// setDefault sets key of the file to our runtime, as the default one.
func (e *edit) setDefault(key ...string) error {
	f := formats[e.format]
	decoded, err := f.Decode(e.text)
	if err != nil {
		return fmt.Errorf("%s: %w", e.file, err)
	}
	if existing, there := conf.Lookup(decoded, key...); there {
		if existing == name {
			return nil
		}
		if e.text, err = f.Remove(e.text, key); err != nil {
			return fmt.Errorf("%s: %w", e.file, err)
		}
	}
	if e.text, err = f.Add(e.text, key, name); err != nil {
		return fmt.Errorf("%s: %w", e.file, err)
	}
	e.keys = append(e.keys, ownKey{Key: key})
	return nil
}

// ofDropIn returns the edit of the drop-in, or nil if the entry is in another file.
func (p *plan) ofDropIn(file string) (*edit, error) {
	for i := range p.edits {
		if p.edits[i].file == file {
			return &p.edits[i], nil
		}
	}
	return nil, fmt.Errorf("the runtime gpuslice is not in %s, but was configured elsewhere: make it the default there", file)
}

// checkExisting evaluates an existing runtime gpuslice of a file. It is kept if it serves, with the note kept; else replaced if forced;
// else an error. serves returns the reason why it does not serve, or "".
func (v *view) checkExisting(file string, existing any, serves func(existing any) string) (kept string, err error) {
	why := serves(existing)
	if why == "" {
		return fmt.Sprintf("%s has a runtime gpuslice already, which is kept as it is", file), nil
	}
	if !v.force {
		return "", fmt.Errorf("%s has a runtime gpuslice already, and %s: --force replaces it", file, why)
	}
	return "", nil
}

// asRoot adds advice to an error of permission.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

func isRuntime(named any) bool {
	text, _ := named.(string)
	return path.Base(text) == RuntimeName
}

// inherited returns the settings of an engine's default runtime that also apply to ours: all except those listed and empty
// values, which are every engine's defaults.
func inherited(from map[string]any, except ...string) map[string]any {
	kept := make(map[string]any)
	for key, value := range from {
		if !isZero(value) {
			kept[key] = value
		}
	}
	for _, key := range except {
		delete(kept, key)
	}
	return kept
}

func isZero(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case bool:
		return !v
	case int64:
		return v == 0
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
