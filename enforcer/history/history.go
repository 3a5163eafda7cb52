// SPDX-License-Identifier: Apache-2.0

// Package history keeps the memory needs of running and ended slices: their peaks, the number of refusals, and the last refusal. It owns
// one file in the state directory, which survives a reboot and is replaced as a whole:
//
//	history.json    records as JSON, oldest first
//
// The history is bounded. A full history drops the oldest record of the source that has most, so no source displaces the records of another
// that has fewer. Changes are written once per writeEvery, outside of all requests; a crash loses at most the changes of one interval. An
// unreadable file is renamed to history.json.damaged, and the history starts empty.
package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

const (
	// Name is the file's name in the state directory.
	Name = "history.json"
	// maxRuns is the number of records kept.
	maxRuns = 1024
	// maxFile exceeds the size of maxRuns records, in bytes.
	maxFile = 16 << 20
	// writeEvery is the longest time for which a change stays unwritten.
	writeEvery = time.Minute
)

// record is a run. Each source has a share of the records: a user with all sessions, or a slice by its id.
type record struct {
	Source string  `json:"source"`
	Run    api.Run `json:"run"`
}

// Log is the history. It is safe for concurrent use.
type Log struct {
	path string // "" for memory only
	log  *slog.Logger

	mu      guard.Mutex[guard.Leaf]
	runs    []record // oldest first
	changed bool     // since the last write
}

// Open reads the history in dir, or starts an empty one. With dir "" the history is in memory only.
func Open(dir string, log *slog.Logger) *Log {
	l := &Log{log: log}
	if dir == "" {
		return l
	}
	l.path = filepath.Join(dir, Name)
	runs, err := read(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		aside := l.path + ".damaged"
		if failed := os.Rename(l.path, aside); failed != nil {
			aside = "" // the next write replaces the file
			err = errors.Join(err, failed)
		}
		log.Error("cannot read the history: starting with an empty one", "file", l.path, "kept", aside, "err", err)
	}
	l.runs = runs
	return l
}

func read(path string) ([]record, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%d bytes are more than the maximum of %d", info.Size(), maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var runs []record
	if err := json.Unmarshal(text, &runs); err != nil {
		return nil, err
	}
	return runs[max(0, len(runs)-maxRuns):], nil
}

// Put adds a run, or replaces an earlier record of it.
func (l *Log) Put(source string, run api.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = true
	if i := l.index(run.Slice, run.Began); i >= 0 {
		l.runs[i] = record{source, run}
		return
	}
	l.runs = append(l.runs, record{source, run})
	if len(l.runs) > maxRuns {
		l.drop()
	}
}

// drop removes one record. It never removes the newest: a source with that single record has no more than an older source.
func (l *Log) drop() {
	has := make(map[string]int)
	most := 0
	for _, r := range l.runs {
		has[r.Source]++
		most = max(most, has[r.Source])
	}
	i := slices.IndexFunc(l.runs, func(r record) bool { return has[r.Source] == most })
	l.runs = slices.Delete(l.runs, i, i+1)
}

// index returns the index of a run, or -1. Called with mu held.
func (l *Log) index(slice string, began time.Time) int {
	return slices.IndexFunc(l.runs, func(r record) bool { return r.Run.Slice == slice && r.Run.Began.Equal(began) })
}

// Of returns the record of a run.
func (l *Log) Of(slice string, began time.Time) (run api.Run, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.index(slice, began); i >= 0 {
		return l.runs[i].Run, true
	}
	return api.Run{}, false
}

// All returns all runs, oldest first.
func (l *Log) All() []api.Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := make([]api.Run, len(l.runs))
	for i, r := range l.runs {
		runs[i] = r.Run
	}
	return runs
}

// End marks the unfinished runs as ended now, except the runs of live slices. alive maps a slice to the start of its current run.
func (l *Log) End(alive map[string]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UTC()
	for i := range l.runs {
		if r := &l.runs[i].Run; r.Ended == nil && !r.Began.Equal(alive[r.Slice]) {
			r.Ended, l.changed = &now, true
		}
	}
}

// Run writes changes once per writeEvery until ctx ends.
func (l *Log) Run(ctx context.Context) {
	ticker := time.NewTicker(writeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.Write()
		}
	}
}

// Write writes the history if it has changed. It logs a failure; the next change makes it try again.
func (l *Log) Write() {
	guard.MayWait("a write of the history")
	l.mu.Lock()
	changed, runs := l.changed && l.path != "", slices.Clone(l.runs)
	l.changed = false
	l.mu.Unlock()
	if !changed {
		return
	}
	if err := replace(l.path, runs); err != nil {
		l.log.Error("cannot write the history: a restart before the next successful write loses recent runs", "file", l.path, "err", err)
	}
}

// replace writes the file atomically.
func replace(path string, runs []record) error {
	text, err := json.Marshal(runs)
	if err != nil {
		return err
	}
	disk := durable.Host()
	_, err = disk.Replace(path, text)
	return err
}
