// SPDX-License-Identifier: Apache-2.0

// Package audit keeps a record of who asked for what and what became of it: a file of JSON lines, one Entry in each.
//
// It owns that file and those that it was rotated into. What it promises: the recorder of an entry never
// waits for it, whatever the disk does; what could not be written is counted, and the file itself says how many entries are
// missing, in the place where they are. It must never stop the enforcer, nor decide anything.
//
// An entry that was written survives the enforcer's death. It does not survive the machine's for sure: nothing is
// synced, since a sync for each entry would let anybody who can cause entries keep the disk busy.
package audit

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Kinds of entries beside those of events.
const (
	KindRequest = "request" // somebody asked for a change on a control socket
	KindDropped = "dropped" // Count entries are missing here
)

// Results of what was asked for.
const (
	OK      = "ok"
	Refused = "refused"
	Gone    = "gone" // a slice was to be released that is not there any more, or never was: nobody was refused anything
)

// Entry is one line. PID, UID and Command are of the process that the entry is about: of a request, the one that asked.
// The other fields of an event are as api.Event has them; of a request that was refused, Requested, Limit and Used are
// the refusal's. What was refused has Operation and Bytes: those of an event are its Call and Requested.
type Entry struct {
	api.Event
	Seq uint64 `json:"seq,omitempty"` // of the event, if it is one

	Result    string      `json:"result,omitempty"`    // OK, Refused or Gone
	Code      api.Code    `json:"code,omitempty"`      // why it was not OK
	Message   string      `json:"message,omitempty"`   // the same in a sentence
	Operation string      `json:"operation,omitempty"` // what was asked for, as openapi.yaml names it: "POST /v1/slices"; of an event the Call
	UID       *uint32     `json:"uid,omitempty"`       // by the kernel's word; absent if it is not known
	Quotas    []api.Quota `json:"quotas,omitempty"`    // that were asked for
	Mode      api.Mode    `json:"mode,omitempty"`      // of a slice that was asked for
	Force     bool        `json:"force,omitempty"`     // a slice was to be released even if its processes are alive
}

// Of is the entry of an event.
func Of(e api.Event) Entry {
	entry := Entry{Event: e, Seq: e.Seq, Result: OK}
	switch e.Kind {
	case api.EventRefused, api.EventDenied:
		entry.Result = Refused
		entry.Operation, entry.Bytes = e.Call, e.Requested
		if e.Device != "" { // else it was not for want of memory
			entry.Code = api.CodeQuotaExceeded
		}
	case api.EventAttachRefused:
		entry.Result = Refused
	}
	return entry
}

// Options of a Writer. Except for File, Keep and MaxSize, the zero value is a default.
type Options struct {
	File    string
	MaxSize int64         // bytes: a file that would become larger is rotated
	MaxAge  time.Duration // since its first entry: one that becomes older is rotated; 0 is never
	Keep    int           // rotated files that are kept; 0 is none
	GID     int           // whom a new file can be read by, beside its owner; below 1: nobody
	Log     *slog.Logger
	Now     func() time.Time
	Retry   time.Duration // between two checks of a file that cannot be written, and at the age of one that can; a second
}

const (
	// queued is how many entries may wait for the disk.
	queued = 4096
	// closeTimeout is for the disk when the Writer is closed.
	closeTimeout = 3 * time.Second
)

// Writer writes entries, in the order in which they were put. Its methods may be called by any number of goroutines.
type Writer struct {
	options Options

	// Of the one goroutine that writes.
	file    file
	lost    Entry // the marker of those that could not be written; its Count is 0 if there are none
	resting bool  // the file failed, and is not tried before the next tick

	written, dropped atomic.Uint64

	mu       sync.Mutex
	queue    []Entry // no more than queued, and a KindDropped at the end if there were more
	dropping bool    // entries are being dropped, and the log has it
	closed   bool

	wake  chan struct{}
	ended chan struct{}
}

// Open returns a Writer to the file. That the file cannot be written is no error: it may be, later.
func Open(o Options) *Writer {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Retry <= 0 {
		o.Retry = time.Second
	}
	w := &Writer{options: o, file: file{options: o}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Put records an entry, and gives it the time of now if it has none. It never waits.
func (w *Writer) Put(e Entry) {
	if e.Time.IsZero() {
		e.Time = w.options.Now().UTC()
	}
	w.mu.Lock()
	switch n := len(w.queue); {
	case w.closed:
		w.dropped.Add(1)
	case n < queued:
		w.queue = append(w.queue, e)
	default:
		w.dropped.Add(1)
		if n == queued {
			w.queue = append(w.queue, missing(0, e.Time, "the disk is too slow"))
			w.sayDropping("the disk is too slow")
		}
		w.queue[queued].Count++
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Event records an event.
func (w *Writer) Event(e api.Event) { w.Put(Of(e)) }

// Counts are how many entries were written and how many were dropped, markers not counted.
func (w *Writer) Counts() (written, dropped uint64) { return w.written.Load(), w.dropped.Load() }

// Dropping says whether entries are being dropped now.
func (w *Writer) Dropping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropping
}

// Close writes what waits, for no longer than a few seconds, and ends the Writer.
func (w *Writer) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-w.ended:
	case <-timer.C:
		w.options.Log.Error("the audit file does not take its last entries", "file", w.options.File)
	}
}

// missing is the marker of entries that are not there.
func missing(count uint64, at time.Time, why string) Entry {
	return Entry{Event: api.Event{Kind: KindDropped, Time: at, Count: count, Cause: why}}
}

// sayDropping says in the log that entries are being dropped, once until that ends. Called with mu held; the log is
// another's, and may be a pipe that nobody reads.
func (w *Writer) sayDropping(why string) {
	if !w.dropping {
		w.dropping = true
		go w.options.Log.Error("the audit file cannot be written: entries are dropped until it can", "file", w.options.File, "err", why)
	}
}

// run writes what is put, until Close.
func (w *Writer) run() {
	defer close(w.ended)
	defer w.file.close()
	ticker := time.NewTicker(w.options.Retry)
	defer ticker.Stop()
	if err := w.file.ready(); err != nil { // it is said before an entry is lost
		w.fails(w.options.Now().UTC(), err)
	}
	for {
		select {
		case <-w.wake:
		case <-ticker.C:
			w.file.check()
			w.resting = false
			w.writeLost()
		}
		w.mu.Lock()
		batch, closed := w.queue, w.closed
		w.queue = nil
		w.mu.Unlock()
		if closed {
			w.resting = false
		}
		for _, e := range batch {
			w.write(e)
		}
		w.goesOn()
		if closed {
			return
		}
	}
}

// write writes an entry, or counts it as lost. After a failure all are lost until the next tick: a disk that fails
// takes its time for each.
func (w *Writer) write(e Entry) {
	if !w.resting && w.writeLost() {
		err := w.file.write(e)
		if err == nil {
			if e.Kind != KindDropped {
				w.written.Add(1)
			}
			return
		}
		w.fails(e.Time, err)
	}
	if e.Kind == KindDropped {
		w.lost.Count += e.Count
		return
	}
	w.lost.Count++
	w.dropped.Add(1)
}

// writeLost writes the marker of what was lost, if anything was, and says whether the file takes more.
func (w *Writer) writeLost() bool {
	if w.lost.Count == 0 {
		return true
	}
	if err := w.file.write(w.lost); err != nil {
		w.fails(w.lost.Time, err)
		return false
	}
	w.lost = Entry{}
	return true
}

func (w *Writer) fails(at time.Time, err error) {
	w.resting = true
	if w.lost.Count == 0 {
		w.lost = missing(0, at, err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sayDropping(err.Error())
}

// goesOn says so in the log when nothing is dropped any more.
func (w *Writer) goesOn() {
	if w.resting || !w.Dropping() || w.file.ready() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropping && w.lost.Count == 0 && len(w.queue) <= queued {
		w.dropping = false
		go w.options.Log.Info("the audit file is written again", "file", w.options.File, "dropped", w.dropped.Load())
	}
}
