// SPDX-License-Identifier: Apache-2.0

// Package engines tells Docker, containerd, CRI-O and Podman of the runtime gpuslice, and takes that back.
//
// It owns one entry in the configuration of each, and a record of what it did (record.go). Where an engine reads drop-ins the
// entry is a file of its own; where not, it is added to the engine's file, of which every other byte is kept (package
// conf). It must never restart an engine, nor leave a configuration behind with which one does not start: what it does
// not understand it refuses, and changes nothing.
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

// name is what the runtime is called in every engine.
const name = "gpuslice"

// The programs that configurations name.
const (
	RuntimeName = "gpuslice-runtime"
	ShimName    = "containerd-shim-gpuslice-v1"
	HookName    = "gpuslice-hook"
)

// Warning begins a note that something is missing.
const Warning = "warning: "

// systemPath is the PATH in which systemd runs engines, and where the programs of an image are looked for.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// defaultDir is where programs are named that are nowhere.
const defaultDir = "/usr/local/bin"

// Host is where engines are configured.
type Host struct {
	Root string // "/", or the root of an image; all other paths are beneath it
	// Where the programs are; absolute.
	Runtime, Shim, Hook string
	// Docker is the version of the dockerd that will read what is written, "28.1.0"; "" if it is not known.
	Docker string
}

// NewHost returns the host whose root is root. find finds a program of gpuslice on this machine, and is not asked about
// the programs of an image.
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

// program returns where a program is in the system's PATH, or else where it would be installed.
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

// missing returns a note if a program is not where the configuration names it.
func (h Host) missing(program string) []string {
	if h.tree().executable(program) {
		return nil
	}
	return []string{fmt.Sprintf(Warning+"%s is not there: install gpuslice before you use the runtime", program)}
}

// lowLevel returns a note on what else to do, if the runtime that an engine uses by default is neither runc nor crun of the
// system: gpuslice-runtime would run one of those instead. runtime is as the engine's configuration names it, by path or name.
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

// Options are what an operator may say.
type Options struct {
	File  string // instead of the engine's standard place; absolute, beneath the host's root
	Hooks bool   // Podman: also bind the hook to the annotation, under every runtime
	// Default has every container that names no runtime be gpuslice's.
	Default bool
	Force   bool // replace an entry that somebody else made
	DryRun  bool // change nothing
}

// engine is one that can be configured.
type engine interface {
	name() string
	// programs and files are those by which one knows that the engine is on a machine.
	programs() []string
	files() []string
	// restart is the command that makes a change count; "" if none is needed.
	restart() string
	// plan says what the configuration is to be.
	plan(v *view, o Options) (plan, error)
	// inUse says where in text, or elsewhere, the runtime gpuslice is made the default; "" if nowhere. An engine
	// whose default runtime is gone does not start.
	inUse(t tree, file string, text []byte) string
}

var all = []engine{docker{}, containerd{}, crio{}, podman{}}

// Names are those of all engines.
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

// Present says whether an engine is on the host, and if not, or if it has no use for a configuration, why it may be left out.
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
		return false, "its CRI plugin is disabled, and ctr, nerdctl and Docker need no configuration of it", nil
	}
	return true, "", nil
}

// plan is what an engine's configuration is to be.
type plan struct {
	edits []edit
	notes []string
}

// edit is what a file is to be.
type edit struct {
	file   string
	format string // of the record
	keys   []ownKey
	text   []byte
	kept   string // says that an entry of somebody else does what ours would; "" if there is none
}

// view is what an engine sees: the files as they would be without us.
type view struct {
	Host
	record *record
	force  bool
}

// read returns a file as it would be without us. Where somebody changed our entry since, it is no longer ours and stays, unless
// it is to be replaced by force.
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

// open begins an edit of a file, and decodes it as it would be without us.
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

// put adds an entry to the file, unless there is one already that is kept.
func (v *view) put(e *edit, key []string, value any, serves func(existing any) string) error {
	f := formats[e.format]
	decoded, err := f.Decode(e.text)
	if err != nil {
		return fmt.Errorf("%s: %w", e.file, err)
	}
	if existing, there := conf.Lookup(decoded, key...); there {
		if e.kept, err = v.judge(e.file, existing, serves); err != nil || e.kept != "" {
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

// setDefault has key of the file name our runtime, which containers get that name none.
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

// ofDropIn is the edit of the drop-in; nil if the entry is in another file.
func (p *plan) ofDropIn(file string) (*edit, error) {
	for i := range p.edits {
		if p.edits[i].file == file {
			return &p.edits[i], nil
		}
	}
	return nil, fmt.Errorf("the runtime gpuslice is not in %s, but was configured elsewhere: make it the default there", file)
}

// judge judges a runtime gpuslice that is in a file already. It is kept if it serves, of which kept is a note; it is replaced by
// force, and else an error. serves says why it does not, and "" if it does.
func (v *view) judge(file string, existing any, serves func(existing any) string) (kept string, err error) {
	why := serves(existing)
	if why == "" {
		return fmt.Sprintf("%s has a runtime gpuslice already, which is kept as it is", file), nil
	}
	if !v.force {
		return "", fmt.Errorf("%s has a runtime gpuslice already, and %s: --force replaces it", file, why)
	}
	return "", nil
}

// asRoot adds to an error of permission what to do about it.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

// isRuntime says whether a configuration's path names gpuslice-runtime.
func isRuntime(named any) bool {
	text, _ := named.(string)
	return path.Base(text) == RuntimeName
}

// inherited returns what of an engine's default runtime counts for ours too: all that is set, but for except. An empty value
// is each engine's default, and left out.
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
