// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// recordDir has a file for each engine that was told of us. It is not below the state directory that the configuration may name: an
// uninstallation must find it when the configuration is gone.
const recordDir = api.DefaultState + "/install"

// recordVersion is the version of the records' schema.
const recordVersion = 1

// record says what was done to an engine's configuration, so that exactly that can be undone. The texts in it may
// have secrets (passwords of registries), so that it is root's alone.
type record struct {
	Version int          `json:"version"`
	Engine  string       `json:"engine"`
	Files   []recordFile `json:"files"`
}

// recordFile is a file that was made or edited.
type recordFile struct {
	Path    string   `json:"path"`    // beneath the host's root
	Format  string   `json:"format"`  // see formats
	Existed bool     `json:"existed"` // if not, we made it
	Before  []byte   `json:"before"`  // what was there
	After   []byte   `json:"after"`   // what we wrote
	Keys    []ownKey `json:"keys"`    // where our entries are
	Made    []string `json:"made"`    // the directories that we made for it, the outermost first
}

// ownKey is the place of an entry of ours.
type ownKey struct {
	Key []string `json:"key"`
	// Alone means that the entry is taken out only if it is as we wrote it, and nothing but it is left in its table.
	Alone bool `json:"alone,omitempty"`
}

// The formats of files.
const (
	formatTOML  = "toml"
	formatJSON  = "json"
	formatWhole = "whole" // JSON that is ours from end to end
)

var formats = map[string]conf.Format{formatTOML: conf.TOML, formatJSON: conf.JSON, formatWhole: conf.JSON}

func recordPath(engine string) string { return path.Join(recordDir, engine+".json") }

// loadRecord returns an engine's record; an empty one if there is none. A record that is not as we write them is refused:
// what it says is written over files of the system.
func loadRecord(t tree, engine string) (*record, error) {
	r := &record{Version: recordVersion, Engine: engine}
	real, err := t.resolve(recordPath(engine))
	if err != nil {
		return nil, err
	}
	text, exists, err := t.read(recordPath(engine))
	if err != nil {
		return nil, fmt.Errorf("the record: %w", err)
	}
	if !exists {
		return r, nil
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("the record: %w", err)
	}
	owner, _ := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm()&0o022 != 0 || owner == nil || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the record %s can be written by others than root: look at it, and remove it if it is not ours", recordPath(engine))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(r); err != nil {
		return nil, fmt.Errorf("the record %s: %w", recordPath(engine), err)
	}
	if _, more := dec.Token(); !errors.Is(more, io.EOF) {
		return nil, fmt.Errorf("the record %s: there is more after it", recordPath(engine))
	}
	if err := r.check(engine); err != nil {
		return nil, fmt.Errorf("the record %s: %w", recordPath(engine), err)
	}
	return r, nil
}

// check holds a record to what we write.
func (r *record) check(engine string) error {
	if r.Version != recordVersion {
		return fmt.Errorf("version %d is not known: use the gpuslice that wrote it", r.Version)
	}
	if r.Engine != engine {
		return fmt.Errorf("it is that of %q", r.Engine)
	}
	for _, f := range r.Files {
		clean := func(p string) bool {
			return path.IsAbs(p) && path.Clean(p) == p && p != "/" && !strings.ContainsRune(p, 0)
		}
		if !clean(f.Path) {
			return fmt.Errorf("%q is no path of a file", f.Path)
		}
		if formats[f.Format] == nil {
			return fmt.Errorf("%s: format %q is not known", f.Path, f.Format)
		}
		if !f.Existed && len(f.Before) > 0 {
			return fmt.Errorf("%s did not exist, and yet had a text", f.Path)
		}
		if len(f.Keys) == 0 && f.Format != formatWhole {
			return fmt.Errorf("%s has no keys", f.Path)
		}
		for _, k := range f.Keys {
			if len(k.Key) == 0 {
				return fmt.Errorf("%s has an empty key", f.Path)
			}
		}
		above := f.Path
		for i := len(f.Made) - 1; i >= 0; i-- {
			if above = path.Dir(above); f.Made[i] != above || !clean(above) {
				return fmt.Errorf("%q is not above %s", f.Made[i], f.Path)
			}
		}
	}
	return nil
}

// file returns what is recorded of a file, or nil.
func (r *record) file(file string) *recordFile {
	for i := range r.Files {
		if r.Files[i].Path == file {
			return &r.Files[i]
		}
	}
	return nil
}

// set records a file.
func (r *record) set(f recordFile) {
	if old := r.file(f.Path); old != nil {
		*old = f
		return
	}
	r.Files = append(r.Files, f)
}

// drop forgets a file.
func (r *record) drop(file string) {
	var kept []recordFile
	for _, f := range r.Files {
		if f.Path != file {
			kept = append(kept, f)
		}
	}
	r.Files = kept
}

// save writes the record; one without files is removed, and so is its directory with the last.
func (r *record) save(t tree) error {
	if len(r.Files) == 0 {
		return t.remove(recordPath(r.Engine), []string{recordDir})
	}
	real, err := t.resolve(recordDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(real, 0o700); err != nil { // both are root's alone, as gpusliced makes them
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return t.write(recordPath(r.Engine), append(text, '\n'), 0o600)
}

// lock keeps other installations out until unlock is called. The directory of the records' own directory is what is locked, since
// that is there, or can be made, whether or not there are records.
func lock(t tree) (unlock func(), err error) {
	real, err := t.resolve(api.DefaultState)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(real))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		dir.Close()
		return nil, &fs.PathError{Op: "lock", Path: dir.Name(), Err: err}
	}
	return func() { dir.Close() }, nil
}

// changedByHand says whether an entry of ours is in text, and other than we wrote it.
func (f *recordFile) changedByHand(text []byte) bool {
	if bytes.Equal(text, f.After) {
		return false
	}
	format := formats[f.Format]
	now, err := format.Decode(text)
	if err != nil {
		return true
	}
	then, err := format.Decode(f.After)
	if err != nil {
		return true
	}
	if f.Format == formatWhole {
		return !conf.Equal(now, then)
	}
	for _, k := range f.Keys {
		if k.Alone {
			continue
		}
		a, there := conf.Lookup(now, k.Key...)
		b, _ := conf.Lookup(then, k.Key...)
		if there && !conf.Equal(a, b) {
			return true
		}
	}
	return false
}

// undo returns what a file that has text now is without us. If it is as we left it, that is what was there, to the
// byte. If it was edited since, only our entries are taken out; an entry that ours replaced comes back in their place.
func (f *recordFile) undo(text []byte) (without []byte, exists bool, err error) {
	if bytes.Equal(text, f.After) || f.Existed && bytes.Equal(text, f.Before) {
		return f.Before, f.Existed, nil
	}
	if f.Format == formatWhole { // half of such a file would be worse than none
		return f.Before, f.Existed, nil
	}
	format := formats[f.Format]
	before, err := format.Decode(f.Before)
	if err != nil {
		return nil, false, fmt.Errorf("%s in the record: %w", f.Path, err)
	}
	after, err := format.Decode(f.After)
	if err != nil {
		return nil, false, fmt.Errorf("%s in the record: %w", f.Path, err)
	}
	for _, k := range f.Keys {
		if k.Alone { // somebody set something in it, and needs it
			now, err := format.Decode(text)
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", f.Path, err)
			}
			is, _ := conf.Lookup(now, k.Key...)
			if was, _ := conf.Lookup(after, k.Key...); !conf.Equal(is, was) {
				continue
			}
		}
		if text, err = takeOut(format, text, k, before); err != nil {
			return nil, false, fmt.Errorf("%s was edited since: %w: take %s out by hand", f.Path, err, strings.Join(k.Key, "."))
		}
		if old, there := conf.Lookup(before, k.Key...); there {
			if table, ok := old.(map[string]any); ok {
				old = conf.NewTable(table)
			}
			if text, err = format.Add(text, k.Key, old); err != nil {
				return nil, false, fmt.Errorf("%s was edited since: %w", f.Path, err)
			}
		}
	}
	if !f.Existed && onlyLinesOf(text, f.After) {
		return nil, false, nil
	}
	return text, true, nil
}

// takeOut takes an entry out, and then the tables above it that are empty and were not there before.
func takeOut(format conf.Format, text []byte, k ownKey, before map[string]any) ([]byte, error) {
	for depth := len(k.Key); depth > 0; depth-- {
		decoded, err := format.Decode(text)
		if err != nil {
			return nil, err
		}
		key := k.Key[:depth]
		at, there := conf.Lookup(decoded, key...)
		if !there {
			continue
		}
		if depth == len(k.Key) {
			if k.Alone && len(conf.Tables(decoded, key[:depth-1]...)) > 1 {
				return text, nil
			}
		} else if table, ok := at.(map[string]any); !ok || len(table) > 0 {
			return text, nil
		} else if _, was := conf.Lookup(before, key...); was {
			return text, nil
		}
		if text, err = format.Remove(text, key); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// onlyLinesOf says whether text has no line that after has not: what is left of a file that we made is ours too.
func onlyLinesOf(text, after []byte) bool {
	ours := make(map[string]bool)
	for line := range bytes.Lines(after) {
		ours[string(bytes.TrimSpace(line))] = true
	}
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && !ours[string(trimmed)] && string(trimmed) != "{}" {
			return false
		}
	}
	return true
}
