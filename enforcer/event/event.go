// SPDX-License-Identifier: Apache-2.0

// Package event keeps what happened, for those who want to know. It owns a bounded log in memory, whose
// events are numbered without gaps; how an event looks is said in package api.
//
// It must never let a reader hold up who appends: there is no reader's state in it, and a reader that is too slow
// learns how many events it has missed.
package event

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// ErrClosed is returned by Wait when nothing more will be appended.
var ErrClosed = errors.New("there will be no more events")

// Log holds the newest events. Its methods may be called by any number of goroutines.
type Log struct {
	instance string

	mu      sync.Mutex
	kept    []api.Event // the event numbered seq is at (seq-1) % most
	most    int
	last    uint64        // number of the newest; 0 is none
	changed chan struct{} // closed by the next Append; nil while nobody waits
	told    func(api.Event)
	closed  bool
}

// NewLog returns a Log of the newest events, as many as most, which is above 0.
func NewLog(most int) *Log {
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the program instead
	return &Log{instance: hex.EncodeToString(id), most: most}
}

// Instance tells this Log from every other one: a number of an event is a number in one instance only.
func (l *Log) Instance() string { return l.instance }

// Tell makes f be told of each event from then on, in their order. f must not wait for anything, nor append: whoever appends
// waits for it.
func (l *Log) Tell(f func(api.Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = f
}

// Append numbers the event, says in which instance, gives it the time of now if it has none, and keeps it.
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
	e.Instance, e.Seq = l.instance, l.last
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

// Since returns the events after number seq of that instance, the oldest first, as many as most. If some of them are not
// kept any more, the first one returned is an api.EventMissed in their place, whose number is the last one's that is missing.
// 0 is all that are kept, and misses none.
//
// The number of another instance is an earlier enforcer's: an api.EventMissed that says so comes first, and then all that are
// kept. Without an instance only a number that was not reached yet can be seen to be one, and is all that are kept.
func (l *Log) Since(instance string, seq uint64, most int) []api.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := l.last - uint64(len(l.kept))
	missed := api.Event{Instance: l.instance, Seq: gone, Time: time.Now().UTC(), Kind: api.EventMissed}
	var found []api.Event
	switch {
	case l.foreign(instance):
		missed.Count, missed.Cause = gone, api.MissedRestarted
		found, seq = append(found, missed), gone
	case seq == 0, seq > l.last:
		seq = gone
	case seq < gone:
		missed.Count = gone - seq
		found, seq = append(found, missed), gone
	}
	for seq++; seq <= l.last && len(found) < most; seq++ {
		found = append(found, l.kept[l.at(seq)])
	}
	return found
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
