// SPDX-License-Identifier: Apache-2.0

// Package event keeps what happened, for those who want to know. It owns a bounded log in memory, whose
// events are numbered without gaps; how an event looks is said in package api.
//
// A full log drops the oldest event of the source that has most in it, so that no source drives out the events of another that has
// fewer: see [Log.Append].
//
// It must never let a reader hold up who appends: there is no reader's state in it, and a reader that is too slow
// learns how many events it has missed.
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

// ErrClosed is returned by Wait when nothing more will be appended.
var ErrClosed = errors.New("there will be no more events")

const (
	// few is how many events a source has that counts as one of the smallest. Where many sources have few events each, the oldest of all is
	// dropped, and not the newest of a source because it has two.
	few = 16
	// maxCause bounds the text of an event; all its other texts are names.
	maxCause = 1024
)

// Log holds the newest events. Its methods may be called by any number of goroutines.
type Log struct {
	instance string

	mu             sync.Mutex
	oldest, newest *entry
	kept, most     int
	last           uint64 // number of the newest; 0 is none
	sources        map[string]*source
	bySize         bySize
	changed        chan struct{} // closed by the next Append; nil while nobody waits
	told           func(of string, e api.Event)
	closed         bool
}

// entry is an event that is kept.
type entry struct {
	event          api.Event
	source         *source
	older, younger *entry
	next           *entry  // of its source
	dropped        subject // of those between the older one and this, if there were any
}

// subject is the slice that dropped events are of; the zero value if they are of several, or may concern a pool.
type subject struct {
	slice, container string
	names            api.Names
}

// source is who has events in the log.
type source struct {
	name           string
	oldest, newest *entry
	kept           int
	place          int // in bySize
}

// NewLog returns a Log of the newest events, as many as most, which is above 0.
func NewLog(most int) *Log {
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the program instead
	return &Log{instance: hex.EncodeToString(id), most: most, sources: make(map[string]*source)}
}

// Instance tells this Log from every other one: a number of an event is a number in one instance only.
func (l *Log) Instance() string { return l.instance }

// Tell makes f be told of each event from then on, in their order. f must not wait for anything, nor append: whoever appends
// waits for it.
func (l *Log) Tell(f func(of string, e api.Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = f
}

// Append numbers the event, says in which instance, gives it the time of now if it has none, and keeps it. The source is whoever
// causes such events, by whatever name. A full log then drops the oldest event of the source that has most; those that
// have 16 or fewer count as equal, and among equals the oldest event is dropped.
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

// drop never drops the newest event: a source whose only event it is has few, and there are older ones.
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

// gap is how many events between the older one and this were dropped.
func (e *entry) gap() uint64 {
	if e.older == nil {
		return e.event.Seq - 1
	}
	return e.event.Seq - e.older.event.Seq - 1
}

// bySize is a heap of the sources: the first one's oldest event is the next to be dropped.
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

// wake is called with mu held.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Since returns the events after number seq of that instance, the oldest first, as many as most. Where some of them are not
// kept any more, there is an api.EventMissed in their place, whose number is the last one's that is missing, and which has the slice
// if they were all of one. 0 is all that are kept, and misses none that are older than those.
//
// The number of another instance is an earlier enforcer's: an api.EventMissed that says so comes first, and then all that are
// kept. Without an instance only a number that was not reached yet can be seen to be one, and is all that are kept.
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

// after is the first that is kept with a higher number, or nil. Who asks mostly has read nearly all, so it is sought from the newest.
func (l *Log) after(seq uint64) *entry {
	var first *entry
	for e := l.newest; e != nil && e.event.Seq > seq; e = e.older {
		first = e
	}
	return first
}

// foreign says whether an instance is another Log's.
func (l *Log) foreign(instance string) bool { return instance != "" && instance != l.instance }

// Wait returns nil once Since(instance, seq) has something to return, and else why it never will: ErrClosed, or ctx's
// error.
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

// Close ends every Wait. What is kept stays readable.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}
