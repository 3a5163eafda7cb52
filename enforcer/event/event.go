// SPDX-License-Identifier: Apache-2.0

// Package event keeps what happened, for those who want to know. It owns a bounded log in memory, whose
// events are numbered without gaps; how an event looks is said in package api.
//
// It must never let a reader hold up who appends: there is no reader's state in it, and a reader that is too slow
// is told how many events it has missed.
package event

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// ErrClosed is returned by Wait when nothing more will be appended.
var ErrClosed = errors.New("there will be no more events")

// Log holds the newest events. Its methods may be called by any number of goroutines.
type Log struct {
	mu      sync.Mutex
	kept    []api.Event // the event numbered seq is at (seq-1) % most
	most    int
	last    uint64        // number of the newest; 0 is none
	changed chan struct{} // closed by the next Append; nil while nobody waits
	told    func(api.Event)
	closed  bool
}

// NewLog returns a Log of the newest events, as many as most, which is above 0.
func NewLog(most int) *Log { return &Log{most: most} }

// Tell makes f be told of each event from then on, in their order. f must not wait for anything, nor append: whoever appends
// waits for it.
func (l *Log) Tell(f func(api.Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = f
}

// Append numbers the event, gives it the time of now if it has none, and keeps it.
func (l *Log) Append(e api.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	l.last++
	e.Seq = l.last
	if len(l.kept) < l.most {
		l.kept = append(l.kept, e)
	} else {
		l.kept[l.at(e.Seq)] = e
	}
	if l.told != nil {
		l.told(e)
	}
	l.wake()
}

// at is where the event numbered seq is, if it is kept.
func (l *Log) at(seq uint64) int { return int((seq - 1) % uint64(l.most)) }

// wake is called with mu held.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Since returns the events after number seq, the oldest first, as many as most. If some of them are not kept any
// more, the first one returned is an api.EventMissed in their place, whose number is the last one's that is missing.
// 0 is all that are kept, and misses none. So is a number that was not reached yet: it is an earlier enforcer's.
func (l *Log) Since(seq uint64, most int) []api.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.last {
		seq = 0
	}
	var found []api.Event
	if gone := l.last - uint64(len(l.kept)); seq < gone {
		if seq > 0 {
			found = append(found, api.Event{Seq: gone, Time: time.Now().UTC(), Kind: api.EventMissed, Count: gone - seq})
		}
		seq = gone
	}
	for seq++; seq <= l.last && len(found) < most; seq++ {
		found = append(found, l.kept[l.at(seq)])
	}
	return found
}

// Wait returns nil once Since(seq) has something to return, and else why it never will: ErrClosed, or ctx's
// error.
func (l *Log) Wait(ctx context.Context, seq uint64) error {
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
