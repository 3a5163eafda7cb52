// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func small(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	dir := t.TempDir()
	must.Do(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// whole checks that each of n entries is in the files or counted as missing there, and that the start and the end of the dropping
// were logged once each.
func whole(t *testing.T, w *Writer, log *said, dir string, n int) {
	t.Helper()
	eventually(t, "the log says that entries are written again", func() bool { return log.count(ends) == 1 })
	closed(t, w)
	there, missing := accounted(read(t, files(t, dir)...))
	written, dropped := w.Counts()
	if there+missing != n || missing == 0 || written != uint64(there) || dropped != uint64(missing) {
		t.Errorf("%d entries are there and %d are said to be missing, of %d; counted %d and %d", there, missing, n, written, dropped)
	}
	if log.count(begins) != 1 || log.count(ends) != 1 {
		t.Errorf("the log: %s", log.String())
	}
}

func TestAFullDiskBlocksNoCallerAndDropsAreCounted(t *testing.T) {
	dir := small(t)
	w, log := writer(t, dir, nil)
	n := 0
	for ; !w.Dropping() || n < 2000; n++ {
		must.True(t, n <= 1e6, "64 KiB take a million entries")
		w.Put(entry(n))
		if n%100 == 0 {
			time.Sleep(time.Millisecond) // keeps the queue short: only the disk is to be full
		}
	}
	eventually(t, "all were tried", func() bool { written, dropped := w.Counts(); return written+dropped == uint64(n) })
	// Each check of the disk writes part of a line and cuts it off again, so count whole lines only.
	text, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if there := bytes.Count(text, []byte("\n")); err != nil || there < 100 {
		t.Errorf("%d entries were written, %v", there, err)
	}
	must.Do(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=16m"))
	w.Put(entry(n))
	whole(t, w, log, dir, n+1)
}

func TestAReadOnlyDiskBlocksNoCaller(t *testing.T) {
	dir := small(t)
	w, log := writer(t, dir, nil)
	w.Put(entry(0))
	eventually(t, "the first is written", w.wrote(1))
	// A file system can become read-only only if no file is open for writing. Moving the file closes it.
	name := filepath.Join(dir, "audit.jsonl")
	must.Do(t, os.Rename(name, name+".000001"))
	eventually(t, "the file system can be made read-only", func() bool {
		return syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "") == nil
	})
	for n := 1; n < 50; n++ {
		w.Put(entry(n))
	}
	eventually(t, "entries are dropped", func() bool { _, dropped := w.Counts(); return dropped == 49 })
	must.Do(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=64k"))
	// The marker is written without a further entry.
	whole(t, w, log, dir, 50)
}

func TestTheAuditLogResumesWhenItsDirectoryReturns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	w, log := writer(t, dir, nil)
	w.Put(entry(0)) // the file never existed
	eventually(t, "entries are dropped", func() bool { _, dropped := w.Counts(); return dropped == 1 })
	must.Do(t, os.Mkdir(dir, 0o755))
	eventually(t, "the marker is written", func() bool { return log.count(ends) == 1 })
	w.Put(entry(1))
	eventually(t, "an entry is written", w.wrote(1))
	aside := dir + "-aside"
	must.Do(t, os.Rename(dir, aside))
	w.Put(entry(2))
	eventually(t, "entries are dropped again", func() bool { _, dropped := w.Counts(); return dropped == 2 })
	must.Do(t, os.Rename(aside, dir))
	eventually(t, "the second marker is written", func() bool { return log.count(ends) == 2 })
	closed(t, w)
	all := read(t, files(t, dir)...)
	if len(all) != 3 || all[0].Kind != KindDropped || all[1].Slice != "s1" || all[2].Kind != KindDropped || all[2].Count != 1 || all[2].Cause == "" {
		t.Errorf("%+v", all)
	}
}

// hanging returns a Writer that has written one entry, on a disk that hangs until goesOn is called.
func hanging(t *testing.T, dir string) (w *Writer, log *said, goesOn func()) {
	t.Helper()
	var hang sync.Mutex
	var hangs atomic.Bool
	w, log = writer(t, dir, func(o *Options) {
		o.MaxAge = time.Hour
		// Entries have a time already, so only the writing goroutine calls Now.
		o.Now = func() time.Time {
			if !hang.TryLock() {
				hangs.Store(true)
				hang.Lock()
			}
			defer hang.Unlock()
			return time.Unix(1e9, 0)
		}
	})
	w.Put(entry(0))
	eventually(t, "the first is written", w.wrote(1))
	hang.Lock()
	goesOn = sync.OnceFunc(hang.Unlock)
	t.Cleanup(goesOn) // before the writer is closed, which would hang, too
	eventually(t, "the disk hangs", hangs.Load)
	return w, log, goesOn
}

func TestAHangingDiskBlocksNoCaller(t *testing.T) {
	dir := t.TempDir()
	const allowed = 3 * maxQueued
	w, log, goesOn := hanging(t, dir)
	for n := 1; n < allowed; n++ {
		w.Put(entry(n))
	}
	_, dropped := w.Counts()
	if dropped < maxQueued || dropped > allowed-maxQueued {
		t.Errorf("%d were dropped", dropped)
	}
	goesOn()
	whole(t, w, log, dir, allowed)
	// The marker is at the place of the missing entries: older entries precede it, newer ones follow.
	all := read(t, files(t, dir)...)
	expect.Equal(t, all[len(all)-1].Kind, KindDropped, "the last")
}

func TestNonRegularFileIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	must.Do(t, os.WriteFile(victim, []byte("mine"), 0o600))
	name := filepath.Join(dir, "audit.jsonl")
	for what, place := range map[string]func() error{
		"a link":      func() error { return os.Symlink(victim, name) },
		"a pipe":      func() error { return syscall.Mkfifo(name, 0o600) },
		"a directory": func() error { return os.Mkdir(name, 0o700) },
	} {
		must.Do(t, place())
		w, log := writer(t, dir, nil)
		w.Put(entry(1))
		eventually(t, what+" is refused", func() bool { return log.count(begins) == 1 })
		closed(t, w)
		must.Do(t, os.Remove(name))
	}
	expect.Equal(t, string(must.Get(os.ReadFile(victim))(t)), "mine")
}

func TestAFileThatCannotBeRotatedGrows(t *testing.T) {
	dir := small(t)
	name := filepath.Join(dir, "audit.jsonl")
	must.Do(t, os.WriteFile(name, nil, 0o640))
	if err := syscall.Mount(name, name, "", syscall.MS_BIND, ""); err != nil { // a mount point cannot be renamed
		t.Fatal(err)
	}
	unmount := sync.OnceFunc(func() { _ = syscall.Unmount(name, syscall.MNT_DETACH) })
	defer unmount()
	w, log := writer(t, dir, func(o *Options) { o.MaxSize = 500 })
	for n := range 20 {
		w.Put(entry(n))
	}
	eventually(t, "all are written", w.wrote(20))
	if all := read(t, name); len(all) != 20 || log.count("cannot be rotated") != 1 || log.count(begins) != 0 {
		t.Errorf("%d entries; the log: %s", len(all), log.String())
	}
	unmount()
	time.Sleep(2 * time.Millisecond)
	w.Put(entry(20))
	closed(t, w)
	if names := files(t, dir); len(names) != 2 || len(read(t, names[0])) != 20 || len(read(t, names[1])) != 1 {
		t.Errorf("%q", names)
	}
}
