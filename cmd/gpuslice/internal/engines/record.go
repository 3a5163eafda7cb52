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
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// recordDir has a record for each configured engine. It is not below the configured state directory, so that Uninstall finds it
// after the configuration is gone.
const recordDir = api.DefaultState + "/install"

const recordVersion = 1

// record describes the changes to an engine's configuration, so that exactly these can be undone. Its texts may contain secrets
// (passwords of registries), so only root can read it.
type record struct {
	Version int          `json:"version"`
	Engine  string       `json:"engine"`
	Files   []recordFile `json:"files"`
}

// recordFile is a file that was created or edited.
type recordFile struct {
	Path    string   `json:"path"`    // beneath the host's root
	Format  string   `json:"format"`  // see formats
	Existed bool     `json:"existed"` // if false, Install created it
	Before  []byte   `json:"before"`  // old content
	After   []byte   `json:"after"`   // new content
	Keys    []ownKey `json:"keys"`    // paths of our entries
	Made    []string `json:"made"`    // directories that Install created for it, the outermost first
}

// ownKey is the path of an entry of ours.
type ownKey struct {
	Key []string `json:"key"`
	// Alone entries are removed only if they are unchanged, and nothing else is left in their table.
	Alone bool `json:"alone,omitempty"`
}

// Formats of files.
const (
	formatTOML  = "toml"
	formatJSON  = "json"
	formatWhole = "whole" // JSON that is entirely ours
)

var formats = map[string]conf.Format{formatTOML: conf.TOML, formatJSON: conf.JSON, formatWhole: conf.JSON}

func recordPath(engine string) string { return path.Join(recordDir, engine+".json") }

// loadRecord returns an engine's record, or an empty one. It rejects a record that Install would not write, since Uninstall
// overwrites files of the system with its content.
func loadRecord(t tree, engine string) (*record, error) {
	r := &record{Version: recordVersion, Engine: engine}
	dir, base, err := t.parent(recordPath(engine), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the record: %w", err)
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the record: %w", &fs.PathError{Op: "open", Path: recordPath(engine), Err: err})
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	text, err := readAll(f, recordPath(engine))
	if err != nil {
		return nil, fmt.Errorf("the record: %w", err)
	}
	info, err := f.Stat()
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

// check returns an error if the record is not one that Install writes.
func (r *record) check(engine string) error {
	if r.Version != recordVersion {
		return fmt.Errorf("version %d is not known: use the gpuslice that wrote it", r.Version)
	}
	if r.Engine != engine {
		return fmt.Errorf("it is the record of engine %q", r.Engine)
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

func (r *record) file(file string) *recordFile {
	for i := range r.Files {
		if r.Files[i].Path == file {
			return &r.Files[i]
		}
	}
	return nil
}

func (r *record) set(f recordFile) {
	if old := r.file(f.Path); old != nil {
		*old = f
		return
	}
	r.Files = append(r.Files, f)
}

func (r *record) drop(file string) {
	var kept []recordFile
	for _, f := range r.Files {
		if f.Path != file {
			kept = append(kept, f)
		}
	}
	r.Files = kept
}

// save writes the record. It removes a record without files, and the directory after the last record.
func (r *record) save(t tree) error {
	if len(r.Files) == 0 {
		return t.remove(recordPath(r.Engine), []string{recordDir})
	}
	dir, _, err := t.parent(recordPath(r.Engine), 0o700) // only root may read both; same mode as in gpusliced
	if err != nil {
		return err
	}
	dir.Close()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return t.write(recordPath(r.Engine), append(text, '\n'), 0o600)
}

// lock blocks other installations until unlock is called. It locks the parent of the records' directory, which exists or can be
// created even without records.
func lock(t tree) (unlock func(), err error) {
	dir, _, err := t.parent(api.DefaultState, 0o755)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		dir.Close()
		return nil, &fs.PathError{Op: "lock", Path: dir.Name(), Err: err}
	}
	return func() { dir.Close() }, nil
}

// changedByHand reports whether text has an entry of ours that differs from what Install wrote.
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

// undo returns text without our entries. If text is unchanged since Install, the result is the old content to the byte. Otherwise
// it removes our entries, and restores those that they replaced.
func (f *recordFile) undo(text []byte) (without []byte, exists bool, err error) {
	if bytes.Equal(text, f.After) || f.Existed && bytes.Equal(text, f.Before) {
		return f.Before, f.Existed, nil
	}
	if f.Format == formatWhole { // a part of such a file would be worse than none
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
		if k.Alone { // an entry with later changes is in use
			now, err := format.Decode(text)
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", f.Path, err)
			}
			current, _ := conf.Lookup(now, k.Key...)
			if was, _ := conf.Lookup(after, k.Key...); !conf.Equal(current, was) {
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

// takeOut removes an entry, and then the tables above it that are empty and did not exist before.
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

// onlyLinesOf reports whether all lines of text are in after: then the rest of a file that Install created is ours, too.
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
