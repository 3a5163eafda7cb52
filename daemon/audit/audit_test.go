// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

type said struct{ testhost.Output }

func (s *said) count(text string) int { return strings.Count(s.String(), text) }

const (
	begins = "entries are dropped until it can"
	ends   = "can be written again"
)

// writer returns a Writer to audit.jsonl in dir, which checks the file every millisecond.
func writer(t *testing.T, dir string, change func(*Options)) (*Writer, *said) {
	t.Helper()
	log := &said{}
	o := Options{
		File: filepath.Join(dir, "audit.jsonl"), MaxSize: 64 << 20, Keep: 8,
		Log: slog.New(slog.NewTextHandler(log, nil)), Retry: time.Millisecond,
	}
	if change != nil {
		change(&o)
	}
	w := Open(o)
	t.Cleanup(w.Close)
	return w, log
}

func entry(n int) Entry {
	return Of(api.Event{Kind: api.EventRefused, Slice: fmt.Sprint("s", n), Time: time.Unix(1e9, 0).UTC(), Requested: 7})
}

func read(t *testing.T, files ...string) []Entry {
	t.Helper()
	var all []Entry
	for _, name := range files {
		f := must.Get(os.Open(name))(t)
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var e Entry
			must.Do(t, json.Unmarshal(lines.Bytes(), &e), name, lines.Text())
			all = append(all, e)
		}
	}
	return all
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(dir, "audit.jsonl.*")))(t)
	return append(names, filepath.Join(dir, "audit.jsonl"))
}

// accounted counts the entries, and those that the markers report as missing.
func accounted(all []Entry) (there, missing int) {
	for _, e := range all {
		if e.Kind == KindDropped {
			missing += int(e.Count)
		} else {
			there++
		}
	}
	return there, missing
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	await.That(t, what, is)
}

// closed closes w and waits for the disk, however slow that is.
func closed(t *testing.T, w *Writer) {
	t.Helper()
	w.Close()
	await.Value(t, "all entries are written", w.ended)
}

func (w *Writer) wrote(n uint64) func() bool {
	return func() bool { written, _ := w.Counts(); return written == n }
}

func TestEntryHasCallerRequestAndResult(t *testing.T) {
	dir := t.TempDir()
	w, _ := writer(t, dir, nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	w.Event("c1", api.Event{Seq: 9, Time: at, Kind: api.EventRefused, Slice: "c1", Generation: 3, Tenant: "physics", PID: 7, Command: "python",
		Device: "GPU-1", Count: 2, Call: "cuMemAlloc", Requested: 100, Limit: new(uint64(50)), Used: new(uint64(0)), Overhead: new(uint64(5))})
	w.Event("c1", api.Event{Seq: 10, Time: at, Kind: api.EventFreed, Slice: "c1", Device: "GPU-1", Bytes: 20})
	w.Event("c1", api.Event{Seq: 11, Time: at, Kind: api.EventDenied, Slice: "c1", Device: "GPU-1", Requested: 30})
	w.Event("c1", api.Event{Seq: 12, Time: at, Kind: api.EventDenied, Pool: "llm", Cause: "why"}) // not for lack of memory
	uid := uint32(0)
	w.Put(Entry{Event: api.Event{Time: at, Kind: KindRequest, Slice: "c2", PID: 8}, UID: &uid, Operation: "POST /v1/slices",
		Result: Refused, Code: api.CodeExists, Message: "it exists", Quotas: []api.Quota{{Device: "*", Bytes: 1 << 30}}})
	closed(t, w)
	text := must.Get(os.ReadFile(filepath.Join(dir, "audit.jsonl")))(t)
	const want = `{"time":"2026-01-02T03:04:05.000000006Z","kind":"refused","slice":"c1","generation":3,"tenant":"physics","pid":7,"command":"python","device":"GPU-1","count":2,"call":"cuMemAlloc","requested":100,"limit":50,"used":0,"overhead":5,"bytes":100,"seq":9,"result":"refused","code":"quota_exceeded","operation":"cuMemAlloc"}
{"time":"2026-01-02T03:04:05.000000006Z","kind":"freed","slice":"c1","device":"GPU-1","bytes":20,"seq":10,"result":"ok"}
{"time":"2026-01-02T03:04:05.000000006Z","kind":"denied","slice":"c1","device":"GPU-1","requested":30,"bytes":30,"seq":11,"result":"refused","code":"quota_exceeded"}
{"time":"2026-01-02T03:04:05.000000006Z","kind":"denied","pool":"llm","cause":"why","seq":12,"result":"refused"}
{"time":"2026-01-02T03:04:05.000000006Z","kind":"request","slice":"c2","pid":8,"result":"refused","code":"exists","message":"it exists","operation":"POST /v1/slices","uid":0,"quotas":[{"device":"*","bytes":1073741824}]}
`
	expect.Equal(t, string(text), want)
}

func TestFileIsReadableOnlyByOwnerAndGroup(t *testing.T) {
	needs.Root(t)
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	w, _ := writer(t, dir, func(o *Options) { o.GID = 12345 })
	w.Put(entry(1))
	closed(t, w)
	info := must.Get(os.Stat(filepath.Join(dir, "audit.jsonl")))(t)
	if info.Mode() != 0o640 || info.Sys().(*syscall.Stat_t).Gid != 12345 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %+v", info.Mode(), info.Sys())
	}
}

func TestFileIsAppendedAfterARestart(t *testing.T) {
	dir := t.TempDir()
	w, _ := writer(t, dir, nil)
	w.Put(entry(1))
	closed(t, w)
	// As after the death of the machine while it wrote a line.
	f := must.Get(os.OpenFile(filepath.Join(dir, "audit.jsonl"), os.O_WRONLY|os.O_APPEND, 0))(t)
	must.Get(f.WriteString(`{"time":"20`))(t)
	f.Close()
	w, _ = writer(t, dir, nil)
	w.Put(entry(2))
	closed(t, w)
	text := must.Get(os.ReadFile(filepath.Join(dir, "audit.jsonl")))(t)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || lines[1] != `{"time":"20` || !strings.Contains(lines[2], `"s2"`) {
		t.Errorf("%q", lines)
	}
}

func TestAFileThatBecomesTooLargeIsRotated(t *testing.T) {
	const maxSize, keep, writers, each = 4000, 200, 8, 400
	dir := t.TempDir()
	w, _ := writer(t, dir, func(o *Options) { o.MaxSize, o.Keep = maxSize, keep })
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			for i := range each {
				e := entry(n)
				e.PID = i + 1
				w.Put(e)
			}
		})
	}
	all.Wait()
	closed(t, w)
	names := files(t, dir)
	expect.True(t, len(names) >= 10, "files are there:", len(names))
	for _, name := range names {
		expect.True(t, must.Get(os.Stat(name))(t).Size() <= maxSize, name, "is too large")
	}
	next := make(map[string]int) // entries of each goroutine stay in order
	there, missing := accounted(read(t, names...))
	for _, e := range read(t, names...) {
		if e.Kind != KindDropped && e.PID <= next[e.Slice] {
			t.Fatalf("%s: %d is behind %d", e.Slice, e.PID, next[e.Slice])
		}
		next[e.Slice] = e.PID
	}
	if there != writers*each || missing != 0 { // fewer than the queue holds
		t.Errorf("%d entries, %d missing", there, missing)
	}
}

func TestOldFilesAreBoundedUnderAnyClock(t *testing.T) {
	dir := t.TempDir()
	var now atomic.Int64
	now.Store(2e9)
	w, _ := writer(t, dir, func(o *Options) {
		o.MaxSize, o.Keep, o.Now = 1, 3, func() time.Time { return time.Unix(now.Load(), 0) }
	})
	for i := range 20 {
		if i == 10 {
			now.Store(1e9) // set back by thirty years
		}
		w.Put(Entry{Event: api.Event{Kind: KindRequest, PID: i + 1}, Result: OK})
		eventually(t, "the entry is written", w.wrote(uint64(i+1)))
	}
	closed(t, w)
	all := read(t, files(t, dir)...)
	if len(all) != 4 || all[0].PID != 17 || all[3].PID != 20 {
		t.Errorf("%+v", all)
	}
}

func TestOldFileIsRotatedWithoutNewEntries(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	now := time.Unix(1e9, 0)
	pass := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	open := func() *Writer {
		w, _ := writer(t, dir, func(o *Options) {
			o.MaxAge = time.Hour
			o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
		})
		return w
	}
	w := open()
	w.Put(Entry{Event: api.Event{Kind: KindRequest, PID: 1}})
	pass(40 * time.Minute)
	w.Put(Entry{Event: api.Event{Kind: KindRequest, PID: 2}})
	closed(t, w)
	must.Len(t, files(t, dir), 1, "rotated before its time")
	w = open() // the age counts from the first entry, not from the start
	w.Put(Entry{Event: api.Event{Kind: KindRequest, PID: 3}})
	eventually(t, "the entry is written", w.wrote(1))
	pass(20 * time.Minute)
	eventually(t, "the file is rotated", func() bool { return len(files(t, dir)) == 2 })
	pass(24 * time.Hour) // an empty file has no age
	w.Put(Entry{Event: api.Event{Kind: KindRequest, PID: 4}})
	closed(t, w)
	names := files(t, dir)
	if len(names) != 2 || len(read(t, names[0])) != 3 || len(read(t, names[1])) != 1 {
		t.Errorf("%q: %+v", names, read(t, names...))
	}
}

func TestAnotherProgramMayRotateTheFile(t *testing.T) {
	dir := t.TempDir()
	w, log := writer(t, dir, nil)
	name := filepath.Join(dir, "audit.jsonl")
	w.Put(entry(1))
	eventually(t, "the first is written", w.wrote(1))
	if err := os.Rename(name, name+"-moved"); err != nil { // as logrotate does
		t.Fatal(err)
	}
	w.Put(entry(2))
	eventually(t, "the second is written", w.wrote(2))
	if a, b := read(t, name+"-moved"), read(t, name); len(a) != 1 || len(b) != 1 || b[0].Slice != "s2" {
		t.Errorf("%+v, %+v", a, b)
	}
	if err := os.Rename(name, name+"-again"); err != nil { // with its "create"
		t.Fatal(err)
	}
	must.Do(t, os.WriteFile(name, nil, 0o600))
	w.Put(entry(3))
	eventually(t, "the third is written", w.wrote(3))
	if err := os.Truncate(name, 0); err != nil { // with its "copytruncate"
		t.Fatal(err)
	}
	w.Put(entry(4))
	closed(t, w)
	if all := read(t, name); len(all) != 1 || all[0].Slice != "s4" {
		t.Errorf("%+v", all)
	}
	expect.Equal(t, log.count(begins), 0, log.String())
}
