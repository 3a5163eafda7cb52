// SPDX-License-Identifier: Apache-2.0

// Package audit keeps a record of who asked for what and what became of it: a file of JSON lines, one Entry in each.
//
// It owns that file and those that it was rotated into. What it promises: the recorder of an entry never
// waits for it, whatever the disk does; what could not be written is counted, and the file itself says how many entries are
// missing, in the place where they are. What waits for the disk is bounded in bytes, and no user rotates away what others
// did (Share). It must never stop the enforcer, nor decide anything.
//
// An entry that was written survives the enforcer's death. It does not survive the machine's for sure: nothing is
// synced, since a sync for each entry would let anybody who can cause entries keep the disk busy.
package audit

import (
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Kinds of entries beside those of events.
const (
	KindRequest = "request" // somebody asked for a change on a control socket
	KindDropped = "dropped" // Count entries are missing here
	KindEvents  = "events"  // Count of what happened to who is the Cause is not listed: it was too much in a minute
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
	Remote    string      `json:"remote,omitempty"`    // where another machine's user asked from, by the word of who asked for him
	Quotas    []api.Quota `json:"quotas,omitempty"`    // that were asked for
	Mode      api.Mode    `json:"mode,omitempty"`      // of a slice that was asked for
	Force     bool        `json:"force,omitempty"`     // a slice was to be released even if its processes are alive

	Share  Share  `json:"-"` // of the file and of the queue
	source string // of an event, if its Share is that
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
	// maxQueued and maxQueuedBytes are how many entries may wait for the disk, and as many more that are being written. Those of the users'
	// socket are half of them at most.
	maxQueued, maxQueuedBytes = 4096, 4 << 20
	// maxText is how long a text of an entry is, in bytes. Ids and names are shorter.
	maxText = 1024
	// closeTimeout is for the disk when the Writer is closed.
	closeTimeout = 3 * time.Second
)

// Writer writes entries, in the order in which they were put. Its methods may be called by any number of goroutines.
type Writer struct {
	options Options

	// Of the one goroutine that writes.
	file    file
	lost    line // the marker of those that could not be written
	resting bool // the file failed, and is not tried before the next tick

	written, dropped atomic.Uint64

	mu       sync.Mutex
	queue    queue
	shares   shares
	dropping bool // entries are being dropped, and the log has it
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

// line is an entry as the file will have it: nothing of a request is kept longer than it takes to make that.
type line struct {
	text    []byte
	time    time.Time
	dropped uint64 // it is the marker of so many entries that are not there, and why is their cause; else 0
	why     string
}

// queue is what waits for the disk: lines within the limits, and a marker behind a line where others were dropped.
type queue struct {
	lines []line
	count int // markers not counted
	bytes int
}

// add says whether there was room. Markers are no more than lines.
func (q *queue) add(l line, share Share) bool {
	part := 1
	if share == ShareUser || share == ShareStranger {
		part = 2
	}
	if q.count < maxQueued/part && q.bytes+len(l.text) <= maxQueuedBytes/part {
		q.lines, q.count, q.bytes = append(q.lines, l), q.count+1, q.bytes+len(l.text)
		return true
	}
	if n := len(q.lines); n > 0 && q.lines[n-1].dropped > 0 {
		q.lines[n-1].dropped++
	} else {
		q.lines = append(q.lines, line{time: l.time, dropped: 1, why: slow})
	}
	return false
}

const slow = "the disk is too slow"

// Put records an entry, and gives it the time of now if it has none. It never waits.
func (w *Writer) Put(e Entry) {
	if e.Time.IsZero() {
		e.Time = w.options.Now().UTC()
	}
	made := makeLine(e)
	w.mu.Lock()
	if e.Share != ShareHost && w.shares.over(e.Time) {
		w.addAll(w.shares.end(e.Time))
	}
	if e.Share == ShareHost || w.shares.lists(e, len(made.text)) {
		w.add(made, e.Share)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func makeLine(e Entry) line {
	for _, text := range []*string{&e.Slice, &e.Container, &e.Tenant, &e.Pool, &e.Command, &e.Cause, &e.Call, &e.Message, &e.Operation} {
		*text = (*text)[:min(len(*text), maxText)]
	}
	text, err := json.Marshal(e)
	if err != nil { // a type of ours that cannot be encoded: a bug
		text, _ = json.Marshal(missing(1, e.Time, err.Error()))
	}
	return line{text: append(text, '\n'), time: e.Time}
}

// add is called with mu held, as addAll is.
func (w *Writer) add(l line, share Share) {
	if w.closed {
		w.dropped.Add(1)
	} else if !w.queue.add(l, share) {
		w.dropped.Add(1)
		w.sayDropping(slow)
	}
}

func (w *Writer) addAll(entries []Entry) {
	for _, e := range entries {
		w.add(makeLine(e), e.Share)
	}
}

// Event records an event of a source: a container, a user with all of his sessions, or "" for the operator.
func (w *Writer) Event(of string, e api.Event) {
	entry := Of(e)
	if of != "" {
		entry.Share, entry.source = ShareSource, of
	}
	w.Put(entry)
}

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
	now := w.options.Now().UTC()
	w.mu.Lock()
	w.addAll(w.shares.end(now))
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
			now := w.options.Now().UTC()
			w.mu.Lock()
			if w.shares.over(now) {
				w.addAll(w.shares.end(now))
			}
			w.mu.Unlock()
		}
		w.mu.Lock()
		batch, closed := w.queue.lines, w.closed
		w.queue = queue{}
		w.mu.Unlock()
		if closed {
			w.resting = false
		}
		for _, l := range batch {
			w.write(l)
		}
		w.goesOn()
		if closed {
			return
		}
	}
}

// write writes an entry, or counts it as lost. After a failure all are lost until the next tick: a disk that fails
// takes its time for each.
func (w *Writer) write(l line) {
	if l.dropped > 0 {
		if w.lost.dropped == 0 {
			w.lost = line{time: l.time, why: l.why}
		}
		w.lost.dropped += l.dropped
		if !w.resting {
			w.writeLost()
		}
		return
	}
	if !w.resting && w.writeLost() {
		err := w.file.write(l.text, l.time)
		if err == nil {
			w.written.Add(1)
			return
		}
		w.fails(l.time, err)
	}
	w.lost.dropped++
	w.dropped.Add(1)
}

// writeLost writes the marker of what was lost, if anything was, and says whether the file takes more.
func (w *Writer) writeLost() bool {
	if w.lost.dropped == 0 {
		return true
	}
	marker := makeLine(missing(w.lost.dropped, w.lost.time, w.lost.why))
	if err := w.file.write(marker.text, marker.time); err != nil {
		w.fails(marker.time, err)
		return false
	}
	w.lost = line{}
	return true
}

func (w *Writer) fails(at time.Time, err error) {
	w.resting = true
	if w.lost.dropped == 0 {
		w.lost = line{time: at, why: err.Error()}
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
	if w.dropping && w.lost.dropped == 0 && len(w.queue.lines) == w.queue.count {
		w.dropping = false
		go w.options.Log.Info("the audit file is written again", "file", w.options.File, "dropped", w.dropped.Load())
	}
}
