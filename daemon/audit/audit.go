// SPDX-License-Identifier: Apache-2.0

// Package audit records requests for changes, and events, in a file of JSON lines, one Entry per line.
//
// It owns that file and its rotated predecessors. The recorder of an entry never waits for the disk. Entries that could not be
// written are counted, and a marker in the file says how many are missing at that place. The queue for the disk is bounded in
// bytes. No user can cause others' entries to be rotated away (Share). The package must never stop the enforcer, and makes no
// decisions.
//
// A written entry survives the enforcer's death, but perhaps not the machine's: nothing is synced, since a sync per entry would
// let every source of entries keep the disk busy.
package audit

import (
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Kinds of entries in addition to those of events.
const (
	KindRequest = "request" // a request for a change on a control socket
	KindDropped = "dropped" // Count entries are missing here
	KindEvents  = "events"  // Count events of the source in Cause are not listed, as there were too many in a minute
)

// Results of requests.
const (
	OK      = "ok"
	Refused = "refused"
	Gone    = "gone" // the slice to be released did not exist; not an error
)

// Entry is one line. PID, UID and Command describe the requesting process, or the one that the event is about. A rejected request
// has Requested, Limit and Used from its error. A rejected allocation has Operation and Bytes from the event's Call and
// Requested. All other fields are those of api.Event.
type Entry struct {
	api.Event
	Seq uint64 `json:"seq,omitempty"` // of the event

	Result    string      `json:"result,omitempty"`    // OK, Refused or Gone
	Code      api.Code    `json:"code,omitempty"`      // of the error
	Message   string      `json:"message,omitempty"`   // of the error, one sentence
	Operation string      `json:"operation,omitempty"` // operation in openapi.yaml, such as "POST /v1/slices"; Call of an event
	UID       *uint32     `json:"uid,omitempty"`       // reported by the kernel; absent if unknown
	Remote    string      `json:"remote,omitempty"`    // address of a user on another machine, as claimed by the requesting process
	Quotas    []api.Quota `json:"quotas,omitempty"`    // as requested
	Mode      api.Mode    `json:"mode,omitempty"`      // of the requested slice
	Force     bool        `json:"force,omitempty"`     // the release was to ignore live processes

	Share  Share  `json:"-"` // quota of the file and of the queue that the entry counts against
	source string // of an event with ShareSource
}

// Of returns the entry of an event.
func Of(e api.Event) Entry {
	entry := Entry{Event: e, Seq: e.Seq, Result: OK}
	switch e.Kind {
	case api.EventRefused, api.EventDenied:
		entry.Result = Refused
		entry.Operation, entry.Bytes = e.Call, e.Requested
		if e.Device != "" { // else memory was not the reason
			entry.Code = api.CodeQuotaExceeded
		}
	case api.EventAttachRefused:
		entry.Result = Refused
	}
	return entry
}

// Options configure a Writer. A zero value is a default, except for File, Keep and MaxSize.
type Options struct {
	File    string
	MaxSize int64         // bytes: rotate before the file exceeds it
	MaxAge  time.Duration // since the first entry: rotate at this age; 0 is never
	Keep    int           // number of rotated files to keep; 0 is none
	GID     int           // group that may read new files; below 1: none
	Log     *slog.Logger
	Now     func() time.Time
	Retry   time.Duration // interval of checks of the file: for recovery after a failure, and of its age; default a second
}

const (
	// maxQueued and maxQueuedBytes limit the entries that wait for the disk, and again those being written. Entries of the users'
	// socket may take half of each.
	maxQueued, maxQueuedBytes = 4096, 4 << 20
	// maxText limits each text of an entry, in bytes. Ids and names are shorter.
	maxText = 1024
	// closeTimeout limits the wait for the disk in Close.
	closeTimeout = 3 * time.Second
)

// Writer writes entries in the order of Put. It is safe for concurrent use.
type Writer struct {
	options Options

	// Used by the writing goroutine only.
	file    file
	lost    line // marker of entries that could not be written
	resting bool // the file failed, and is not tried again before the next tick

	written, dropped atomic.Uint64

	mu       sync.Mutex
	queue    queue
	shares   shares
	dropping bool // entries are being dropped, and this was logged
	closed   bool
	said     chan struct{} // closed once the latest line of the log is written; nil before the first

	wake  chan struct{}
	ended chan struct{}
}

// Open starts a Writer to the file. It succeeds even if the file cannot be written yet.
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

// line is an encoded entry. The request itself is not kept.
type line struct {
	text    []byte
	time    time.Time
	dropped uint64 // number of missing entries that this marker stands for, with the reason why; 0 for an entry
	why     string
}

// queue holds the lines that wait for the disk. A marker stands for the lines dropped after its predecessor.
type queue struct {
	lines []line
	count int // without markers
	bytes int
}

// add appends l, or counts it as dropped and returns false if the queue is full. There are never more markers than lines.
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

// Put records an entry, and sets its time if it has none. It never blocks.
func (w *Writer) Put(e Entry) {
	if e.Time.IsZero() {
		e.Time = w.options.Now().UTC()
	}
	made := makeLine(e)
	w.mu.Lock()
	if e.Share != ShareHost && w.shares.hasEnded(e.Time) {
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
	if err != nil { // a type that cannot be encoded: a bug
		text, _ = json.Marshal(missing(1, e.Time, err.Error()))
	}
	return line{text: append(text, '\n'), time: e.Time}
}

// add appends to the queue; mu is held, also for addAll.
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

// Event records an event of a source: a container, a user with all sessions of theirs, or "" for the operator.
func (w *Writer) Event(of string, e api.Event) {
	entry := Of(e)
	if of != "" {
		entry.Share, entry.source = ShareSource, of
	}
	w.Put(entry)
}

// Counts returns the numbers of written and dropped entries, without markers.
func (w *Writer) Counts() (written, dropped uint64) { return w.written.Load(), w.dropped.Load() }

// Dropping reports whether entries are being dropped now.
func (w *Writer) Dropping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropping
}

// Close writes the queued entries, for a few seconds at most, and stops the Writer.
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
		w.options.Log.Error("the last entries cannot be written to the audit file", "file", w.options.File)
	}
}

func missing(count uint64, at time.Time, why string) Entry {
	return Entry{Event: api.Event{Kind: KindDropped, Time: at, Count: count, Cause: why}}
}

// logInOrder writes lines to the log in the order of its calls. mu is held, so another goroutine writes the log, which may be a pipe
// without a reader.
func (w *Writer) logInOrder(log func()) {
	before, done := w.said, make(chan struct{})
	w.said = done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		log()
	}()
}

// sayDropping logs once that entries are being dropped. mu is held.
func (w *Writer) sayDropping(why string) {
	if !w.dropping {
		w.dropping = true
		w.logInOrder(func() {
			w.options.Log.Error("the audit file cannot be written: entries are dropped until it can be", "file", w.options.File, "err", why)
		})
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	defer w.file.close()
	ticker := time.NewTicker(w.options.Retry)
	defer ticker.Stop()
	if err := w.file.ready(); err != nil { // logged before an entry is lost
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
			if w.shares.hasEnded(now) {
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

// write writes an entry, or counts it as lost. After a failure all are lost until the next tick, as each attempt on a failing
// disk can take long.
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

// writeLost writes the marker of lost entries, if any, and reports whether the file accepts more.
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

// goesOn logs that entries are no longer dropped.
func (w *Writer) goesOn() {
	if w.resting || !w.Dropping() || w.file.ready() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropping && w.lost.dropped == 0 && len(w.queue.lines) == w.queue.count {
		w.dropping = false
		dropped := w.dropped.Load()
		w.logInOrder(func() {
			w.options.Log.Info("the audit file can be written again", "file", w.options.File, "dropped", dropped)
		})
	}
}
