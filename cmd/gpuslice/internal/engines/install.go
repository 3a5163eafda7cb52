// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"fmt"
	"path"
	"slices"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// State is the result for an engine.
type State string

const (
	Done    State = "done"          // its configuration was changed, or would be in a dry run
	Nothing State = "nothing to do" // already configured
	LeftOut State = "left out"      // it is not on this machine, or needs no configuration
	Failed  State = "failed"
)

// Result describes the changes for an engine.
type Result struct {
	Engine  string   `json:"engine"`
	State   State    `json:"state"`
	Why     string   `json:"why,omitempty"` // reason why it was left out, or failed
	DryRun  bool     `json:"dry_run"`       // nothing was changed; State, Changes and Restart are the expected ones
	Changes []Change `json:"changes"`
	Notes   []string `json:"notes"`
	// Restart is the command that applies the change; "" if none is needed.
	Restart string `json:"restart,omitempty"`
}

// Change is a changed file.
type Change struct {
	Path string `json:"path"`
	What string `json:"what"` // "made", "edited" or "removed"
	Diff string `json:"diff"` // unified
}

func change(file string, before []byte, existed bool, after []byte, exists bool) Change {
	c := Change{Path: file, What: "edited", Diff: diff(file, before, existed, after, exists)}
	switch {
	case !existed:
		c.What = "made"
	case !exists:
		c.What = "removed"
	}
	return c
}

// Install registers the runtime with an engine. It records the old and the new content before it writes, so Uninstall works after
// a kill at any moment.
func Install(h Host, engineName string, o Options) (Result, error) {
	result, err := install(h, engineName, o)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", engineName, asRoot(err))
	}
	return result, nil
}

func nothingYet(engineName string) Result {
	return Result{Engine: engineName, State: Nothing, Changes: []Change{}, Notes: []string{}}
}

// begin returns the engine and its record. If something may change, it takes the lock.
func begin(h Host, engineName string, changes bool) (e engine, rec *record, unlock func(), err error) {
	if e, err = find(engineName); err != nil {
		return nil, nil, nil, err
	}
	unlock = func() {}
	if changes {
		if unlock, err = lock(h.tree()); err != nil {
			return nil, nil, nil, err
		}
	}
	if rec, err = loadRecord(h.tree(), engineName); err != nil {
		unlock()
		return nil, nil, nil, err
	}
	return e, rec, unlock, nil
}

func install(h Host, engineName string, o Options) (Result, error) {
	r := nothingYet(engineName)
	e, rec, unlock, err := begin(h, engineName, !o.DryRun)
	if err != nil {
		return r, err
	}
	defer unlock()
	v := &view{Host: h, record: rec, force: o.Force}
	p, err := e.plan(v, o)
	if err != nil {
		return r, err
	}
	r.Notes = append(r.Notes, p.notes...)
	var edits []edit
	for _, e := range p.edits {
		if e.kept != "" {
			r.Notes = append(r.Notes, e.kept)
		}
		now, exists, err := h.tree().read(e.file)
		if err != nil {
			return r, err
		}
		if exists && e.matches(now) {
			continue
		}
		edits = append(edits, e)
		r.Changes = append(r.Changes, change(e.file, now, exists, e.text, true))
	}
	if len(edits) == 0 {
		return r, nil
	}
	r.State, r.Restart = Done, e.restart()
	if o.DryRun {
		return r, nil
	}
	for _, e := range edits {
		before, existed, err := v.read(e.file)
		if err != nil {
			return r, err
		}
		f := recordFile{Path: e.file, Format: e.format, Existed: existed, Before: before, After: e.text, Keys: e.keys}
		if old := rec.file(e.file); old != nil {
			f.Made = old.Made
		} else if f.Made, err = h.tree().absent(path.Dir(e.file)); err != nil {
			return r, err
		}
		rec.set(f)
	}
	if err := rec.save(h.tree()); err != nil {
		return r, err
	}
	for _, e := range edits {
		if err := h.tree().write(e.file, e.text, 0o644); err != nil {
			return r, err
		}
	}
	return r, nil
}

// matches reports whether text has the same content as the edit, in any form.
func (e edit) matches(text []byte) bool {
	if bytes.Equal(text, e.text) {
		return true
	}
	now, err := formats[e.format].Decode(text)
	if err != nil {
		return false
	}
	want, err := formats[e.format].Decode(e.text)
	return err == nil && conf.Equal(now, want)
}

// Uninstall undoes the changes of Install, and nothing else.
func Uninstall(h Host, engineName string, o Options) (Result, error) {
	result, err := uninstall(h, engineName, o)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", engineName, asRoot(err))
	}
	return result, nil
}

// undone is a file and its content without our entries.
type undone struct {
	recordFile
	text   []byte
	exists bool
}

func uninstall(h Host, engineName string, o Options) (Result, error) {
	r := nothingYet(engineName)
	// Without a record nothing changes, and the lock's directory is not created.
	e, rec, unlock, err := begin(h, engineName, !o.DryRun && h.tree().exists(recordPath(engineName)))
	if err != nil {
		return r, err
	}
	defer unlock()
	var files []undone
	for _, f := range slices.Clone(rec.Files) {
		if o.File != "" && o.File != f.Path {
			continue
		}
		now, existed, err := h.tree().read(f.Path)
		if err != nil {
			return r, err
		}
		if !existed {
			r.Notes = append(r.Notes, f.Path+" is gone already")
			files = append(files, undone{recordFile: f})
			continue
		}
		u := undone{recordFile: f}
		if u.text, u.exists, err = f.undo(now); err != nil {
			return r, err
		}
		if where := e.inUse(h.tree(), f.Path, u.text); where != "" {
			return r, fmt.Errorf("%s makes gpuslice the default runtime: name another one there first, or the engine does not start", where)
		}
		if !u.exists || !bytes.Equal(u.text, now) {
			r.Changes = append(r.Changes, change(f.Path, now, true, u.text, u.exists))
		}
		files = append(files, u)
	}
	if len(files) == 0 {
		return r, nil
	}
	if len(r.Changes) > 0 {
		r.State = Done
		r.Restart = e.restart()
	}
	if o.DryRun {
		return r, nil
	}
	for _, u := range files {
		if err := u.apply(h.tree()); err != nil {
			return r, err
		}
		rec.drop(u.Path)
	}
	return r, rec.save(h.tree())
}

func (u undone) apply(t tree) error {
	now, existed, err := t.read(u.Path)
	if err != nil {
		return err
	}
	switch {
	case u.exists && (!existed || !bytes.Equal(now, u.text)):
		return t.write(u.Path, u.text, 0o644)
	case !u.exists:
		return t.remove(u.Path, u.Made)
	}
	return nil
}
