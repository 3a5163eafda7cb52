// SPDX-License-Identifier: Apache-2.0

// Package history keeps what slices needed, also of those that have ended: their peaks, how often they were refused, and the last
// refusal. It owns a file in the state directory, which survives the host, and is replaced as a whole:
//
//	history.json    records as JSON, the oldest first
//
// It is bounded. A full history drops the oldest record of the source that has most, so that no source drives out the records
// of another that has fewer. Nobody waits for the disk: what changed is written once in an interval, and what
// a crash loses is at most that. A file that cannot be read is set aside, and an empty one takes its place.
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
	// Name is the file's in the state directory.
	Name = "history.json"
	// maxRuns is how many runs are kept.
	maxRuns = 1024
	// maxFile is more than so many runs need.
	maxFile = 16 << 20
	// writeEvery is for how long a change may wait.
	writeEvery = time.Minute
)

// record is a run, and whose share of the history it takes.
type record struct {
	Source string  `json:"source"`
	Run    api.Run `json:"run"`
}

// Log is the history. Its methods may be called by several goroutines.
type Log struct {
	path string // "": in memory only
	log  *slog.Logger

	mu      guard.Mutex[guard.Leaf]
	runs    []record // the oldest first
	changed bool     // since it was written
}

// Open reads the history in that directory, or begins one. Without a directory it is kept in memory only.
func Open(dir string, log *slog.Logger) *Log {
	l := &Log{log: log}
	if dir == "" {
		return l
	}
	l.path = filepath.Join(dir, Name)
	runs, err := read(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		aside := l.path + ".damaged"
		log.Error("history cannot be read: it was set aside, and begins anew", "file", l.path, "kept", aside, "err", err)
		if err := os.Rename(l.path, aside); err != nil {
			log.Error("set the history aside", "file", l.path, "err", err)
		}
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
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has %d bytes: %d are accepted", info.Size(), maxFile)
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

// Put keeps a run in place of what was kept of it.
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

// drop never drops the newest: a source that has one alone has no more than others that are older.
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

// index is where a run is; -1 if it is not kept. Called with mu held.
func (l *Log) index(slice string, began time.Time) int {
	return slices.IndexFunc(l.runs, func(r record) bool { return r.Run.Slice == slice && r.Run.Began.Equal(began) })
}

// Of is what is kept of a run.
func (l *Log) Of(slice string, began time.Time) (run api.Run, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.index(slice, began); i >= 0 {
		return l.runs[i].Run, true
	}
	return api.Run{}, false
}

// All are the runs that are kept, the oldest first.
func (l *Log) All() []api.Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := make([]api.Run, len(l.runs))
	for i, r := range l.runs {
		runs[i] = r.Run
	}
	return runs
}

// End has all runs that are not over be so now, but for those of slices that are alive and began then: others ended while nobody saw it.
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

// Run writes what changes, until ctx ends.
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

// Write writes the history, if it has changed. One that fails is said, and tried again with the next change.
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
		l.log.Error("history not written: what ended of late is forgotten at the next start, unless a later write succeeds", "file", l.path, "err", err)
	}
}

// replace has the file there whole, as it was before or after.
func replace(path string, runs []record) error {
	text, err := json.Marshal(runs)
	if err != nil {
		return err
	}
	disk := durable.Host()
	_, err = disk.Replace(path, text)
	return err
}
