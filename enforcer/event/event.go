// SPDX-License-Identifier: Apache-2.0

// Package event keeps recent events for their readers. It owns a bounded log in memory, with events numbered without gaps. Package api
// defines an event.
//
// A full log drops the oldest event of the source that has most events, so no source displaces the events of another that has fewer: see
// [Log.Append].
//
// The package must never let a reader delay a writer. It keeps no state of readers, and a slow reader learns how many events it has missed.
package event

import (
	"container/heap"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// ErrClosed is returned by Wait after Close.
var ErrClosed = errors.New("the event log is closed")

const (
	// few is the number of events up to which sources count as equal. With many sources of few events each, the oldest event of all is
	// dropped, and not the newest of a source that has two.
	few = 16
	// maxCause bounds the text of an event, in bytes. Its other texts are names.
	maxCause = 1024
)

// Log holds the newest events. It is safe for concurrent use.
type Log struct {
	instance string

	mu             sync.Mutex
	oldest, newest *entry
	kept, most     int
	last           uint64 // number of the newest event, or 0
	sources        map[string]*source
	bySize         bySize
	changed        chan struct{} // closed by the next Append; nil without waiters
	told           func(of string, e api.Event)
	closed         bool
}

// entry is an event in the log.
type entry struct {
	event          api.Event
	source         *source
	older, younger *entry
	next           *entry  // next event of its source
	dropped        subject // of the events dropped between the older one and this
}

// subject is the slice of dropped events. It is zero if they are of several slices, or may concern a pool.
type subject struct {
	slice, container string
	names            api.Names
}

// source is a source with events in the log.
type source struct {
	name           string
	oldest, newest *entry
	kept           int
	place          int // index in bySize
}

// NewLog returns a Log of at most most events, which is above 0.
func NewLog(most int) *Log {
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the program instead
	return &Log{instance: hex.EncodeToString(id), most: most, sources: make(map[string]*source)}
}

// Instance returns the Log's unique name. An event's number is valid within one instance.
func (l *Log) Instance() string { return l.instance }

// Tell makes Append call f with each later event, in order. f must neither block nor append.
func (l *Log) Tell(f func(of string, e api.Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = f
}

// Append numbers an event, adds the instance and a missing time, and keeps it. of is its source: the party that causes such events, under
// any name. A full log then drops the oldest event of the largest source. Sources of 16 or fewer events count as equal, and among equals
// the oldest event is dropped.
func (l *Log) Append(of string, e api.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	if len(e.Cause) > maxCause {
		e.Cause = strings.ToValidUTF8(strings.Clone(e.Cause[:maxCause]), "") + "…"
	}
	l.last++
	e.Instance, e.Seq = l.instance, l.last
	l.keep(of, e)
	if l.kept > l.most {
		l.drop()
	}
	if l.told != nil {
		l.told(of, e)
	}
	l.wake()
}

func (l *Log) keep(name string, e api.Event) {
	s := l.sources[name]
	if s == nil {
		s = &source{name: name}
		l.sources[name] = s
	}
	added := &entry{event: e, source: s, older: l.newest}
	if l.newest == nil {
		l.oldest = added
	} else {
		l.newest.younger = added
	}
	l.newest = added
	l.kept++

	s.kept++
	if s.newest != nil {
		s.newest.next = added
		s.newest = added
		heap.Fix(&l.bySize, s.place)
		return
	}
	s.oldest, s.newest = added, added
	heap.Push(&l.bySize, s)
}

// drop removes one event. It never removes the newest: a source with that single event has few, and older events exist.
func (l *Log) drop() {
	s := l.bySize[0]
	e := s.oldest
	of := subject{e.event.Slice, e.event.Container, e.event.Names}
	if e.event.Pool != "" {
		of = subject{}
	}
	after := e.younger
	for _, x := range []*entry{e, after} {
		if x.gap() > 0 && x.dropped != of {
			of = subject{}
		}
	}
	after.dropped = of
	after.older = e.older
	if e.older == nil {
		l.oldest = after
	} else {
		e.older.younger = after
	}
	l.kept--

	s.oldest = e.next
	s.kept--
	if s.kept == 0 {
		heap.Remove(&l.bySize, s.place)
		delete(l.sources, s.name)
		return
	}
	heap.Fix(&l.bySize, s.place)
}

// gap returns the number of events that were dropped between the older one and this.
func (e *entry) gap() uint64 {
	if e.older == nil {
		return e.event.Seq - 1
	}
	return e.event.Seq - e.older.event.Seq - 1
}

// bySize is a heap of the sources. The first source's oldest event is dropped next.
type bySize []*source

func (h bySize) Len() int { return len(h) }
func (h bySize) Less(i, j int) bool {
	if a, b := max(h[i].kept, few), max(h[j].kept, few); a != b {
		return a > b
	}
	return h[i].oldest.event.Seq < h[j].oldest.event.Seq
}
func (h bySize) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *bySize) Push(x any) {
	s := x.(*source)
	s.place = len(*h)
	*h = append(*h, s)
}
func (h *bySize) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	*h = slices.Delete(*h, last, last+1)
	return s
}

// wake wakes the waiters. Called with mu held.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Since returns at most most events after number seq of an instance, oldest first. An api.EventMissed replaces events that were dropped. It
// has the number of the last of them, and their slice if all were of one. 0 stands for all kept events, without an EventMissed for older
// ones.
//
// If instance is that of an earlier enforcer, the result begins with an api.EventMissed of that cause, followed by all kept events. Without
// an instance, only a number that was not reached yet is known to be of an earlier one; it stands for all kept events.
func (l *Log) Since(instance string, seq uint64, most int) []api.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var gone uint64
	if l.oldest != nil {
		gone = l.oldest.event.Seq - 1
	}
	var found []api.Event
	switch {
	case l.foreign(instance):
		found = append(found, api.Event{Instance: l.instance, Seq: gone, Time: time.Now().UTC(), Kind: api.EventMissed, Count: gone, Cause: api.MissedRestarted})
		seq = gone
	case seq == 0, seq > l.last:
		seq = gone
	}
	for e := l.after(seq); e != nil && len(found) < most; e = e.younger {
		if missing := e.event.Seq - 1 - seq; missing > 0 {
			found = append(found, api.Event{
				Instance: l.instance, Seq: e.event.Seq - 1, Time: e.event.Time, Kind: api.EventMissed,
				Count: missing, Slice: e.dropped.slice, Container: e.dropped.container, Names: e.dropped.names,
			})
		}
		found = append(found, e.event)
		seq = e.event.Seq
	}
	return found[:min(len(found), most)]
}

// after returns the first kept event with a higher number, or nil. It searches from the newest, since most readers have read nearly all.
func (l *Log) after(seq uint64) *entry {
	var first *entry
	for e := l.newest; e != nil && e.event.Seq > seq; e = e.older {
		first = e
	}
	return first
}

// foreign reports whether instance is that of another Log.
func (l *Log) foreign(instance string) bool { return instance != "" && instance != l.instance }

// Wait returns nil once Since(instance, seq) returns an event. It returns ErrClosed or ctx's error if that will not happen.
func (l *Log) Wait(ctx context.Context, instance string, seq uint64) error {
	if l.foreign(instance) {
		return nil
	}
	for {
		l.mu.Lock()
		if l.last > 0 && l.last != seq {
			l.mu.Unlock()
			return nil
		}
		if l.closed {
			l.mu.Unlock()
			return ErrClosed
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends all calls of Wait. The kept events stay readable.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}
