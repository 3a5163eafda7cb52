// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrWatched means that the cgroup already has a watch.
var ErrWatched = errors.New("the cgroup is watched already")

// retryInterval is the polling interval where no event will come: after a failed check, and on v1 once the first process has ended.
const retryInterval = time.Second

// Watcher reports when cgroups become empty or are removed. On v2 the kernel has events for both (cgroup.events, and the parent directory
// for the removal, which the directory itself does not report). On v1 it has an event for the removal only: call Recheck once the container's
// first process has ended.
//
// An event only triggers a check, and the state of the cgroup decides. So merged and duplicate events do no harm. After lost events, an overflow
// of the queue, every cgroup is checked.
//
// The package uses inotify directly for its event masks. fsnotify also watches for chmod and the like, by which a container that owns its
// cgroup could keep the enforcer busy, and leaks the kernel's watch of a reused path.
type Watcher struct {
	inotify *os.File
	done    chan struct{} // closed when the loop has ended
	retry   time.Duration

	mu        sync.Mutex
	closed    bool
	watches   map[Path]*entry
	polled    map[Path]bool           // to check without an event
	pathsByWD map[int32]map[Path]bool // the cgroups of each inotify watch
	next      time.Time               // the next poll; zero if there is none
}

type entry struct {
	done   func(Path) (bool, error) // reports whether to call notify, once
	notify func()
	wds    []int32
	failed bool // the last check failed: retry
	pollV1 bool // Recheck was called: the first process has ended, so p may become empty without an event
}

// NewWatcher starts a Watcher. Close ends its goroutine and frees its inotify instance.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch cgroups: inotify: %w: raise fs.inotify.max_user_instances", err)
	}
	w := &Watcher{
		inotify: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), retry: retryInterval,
		watches: make(map[Path]*entry), polled: make(map[Path]bool), pathsByWD: make(map[int32]map[Path]bool),
	}
	go w.loop()
	return w, nil
}

// Watch calls empty once, when p has no processes or is gone, possibly at once. The Watcher's goroutine calls these functions one at a
// time. empty may call Watch and Unwatch, and must not block for long.
func (w *Watcher) Watch(p Path, empty func()) error { return w.add(p, negated(Populated), empty) }

// WatchDir calls gone once, when p is gone, as Watch does. An empty cgroup that still exists is not gone.
func (w *Watcher) WatchDir(p Path, gone func()) error { return w.add(p, negated(exists), gone) }

func negated(is func(Path) (bool, error)) func(Path) (bool, error) {
	return func(p Path) (bool, error) {
		yes, err := is(p)
		return !yes, err
	}
}

func (w *Watcher) add(p Path, done func(Path) (bool, error), notify func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	if w.watches[p] != nil {
		return fmt.Errorf("cannot watch cgroup %s: %w", p, ErrWatched)
	}
	e := &entry{done: done, notify: notify}
	w.watches[p] = e
	err := w.addWatch(p, e, filepath.Dir(p.Dir()), unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR)
	if err == nil && p.V2 {
		err = w.addWatch(p, e, filepath.Join(p.Dir(), "cgroup.events"), unix.IN_MODIFY)
	}
	if err != nil && !isGone(err) {
		w.forget(p)
		return fmt.Errorf("cannot watch cgroup %s: %w", p, err)
	}
	// p may have become empty before the watches were added. The loop checks it, so that notify never runs under its caller's locks.
	w.polled[p] = true
	w.wake()
	return nil
}

// addWatch adds an inotify watch for p. Called with mu held.
func (w *Watcher) addWatch(p Path, e *entry, file string, mask uint32) error {
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	var werr error
	err = conn.Control(func(fd uintptr) {
		// Cgroups with the same parent share a watch: the kernel returns the same number. Without MASK_ADD this mask would replace that of
		// the existing watch.
		wd, werr = unix.InotifyAddWatch(int(fd), file, mask|unix.IN_MASK_ADD)
	})
	if err = errors.Join(err, werr); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: raise fs.inotify.max_user_watches", err)
		}
		return err
	}
	if w.pathsByWD[int32(wd)] == nil {
		w.pathsByWD[int32(wd)] = make(map[Path]bool)
	}
	w.pathsByWD[int32(wd)][p] = true
	e.wds = append(e.wds, int32(wd))
	return nil
}

// Unwatch removes the watch of p. It returns true if empty was not called, and never will be.
func (w *Watcher) Unwatch(p Path) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forget(p)
}

// forget removes the watch of p, and reports whether there was one. Called with mu held.
func (w *Watcher) forget(p Path) bool {
	e := w.watches[p]
	if e == nil {
		return false
	}
	delete(w.watches, p)
	delete(w.polled, p)
	for _, wd := range e.wds {
		delete(w.pathsByWD[wd], p)
		if len(w.pathsByWD[wd]) > 0 {
			continue
		}
		delete(w.pathsByWD, wd)
		if conn, err := w.inotify.SyscallConn(); err == nil {
			// fails with EINVAL if the kernel dropped the watch with its directory
			_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
	return true
}

// wake interrupts the loop's read, so that it polls. Called with mu held.
func (w *Watcher) wake() { w.pollAt(time.Unix(1, 0)) }

// pollAt has the loop check the polled cgroups at t, or earlier. Called with mu held.
func (w *Watcher) pollAt(t time.Time) {
	if w.next.IsZero() || t.Before(w.next) {
		w.next = t
		_ = w.inotify.SetReadDeadline(t)
	}
}

// Close ends the Watcher. No function runs after it returns. It must not be called from an empty function.
func (w *Watcher) Close() error {
	w.mu.Lock()
	closed := w.closed
	w.closed = true
	w.mu.Unlock()
	var err error
	if !closed {
		err = w.inotify.Close()
	}
	<-w.done
	return err
}

func (w *Watcher) loop() {
	defer close(w.done)
	buf := make([]byte, 64*1024)
	for {
		n, err := w.inotify.Read(buf)
		var due []Path
		switch {
		case err == nil:
			due = w.pathsOf(buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			due = w.due()
		default:
			return
		}
		for _, p := range due {
			if notify := w.check(p); notify != nil {
				notify()
			}
		}
	}
}

// pathsOf returns the cgroups that a batch of events is about, or all of them after an overflow. An event of a parent directory names one
// cgroup; its siblings, possibly thousands, need no check.
func (w *Watcher) pathsOf(events []byte) []Path {
	w.mu.Lock()
	defer w.mu.Unlock()
	set := make(map[Path]bool)
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		size := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])), len(events))
		name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:size], "\x00"))
		events = events[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for p := range w.watches {
				set[p] = true
			}
		}
		for p := range w.pathsByWD[wd] {
			if name == "" || name == filepath.Base(p.Rel) {
				set[p] = true
			}
		}
	}
	due := make([]Path, 0, len(set))
	for p := range set {
		due = append(due, p)
	}
	return due
}

// due returns the cgroups to check without an event, and sets the time of the next poll.
func (w *Watcher) due() []Path {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := make([]Path, 0, len(w.polled))
	w.next = time.Time{}
	_ = w.inotify.SetReadDeadline(w.next)
	for p := range w.polled {
		due = append(due, p)
		if e := w.watches[p]; e.failed || silentV1(p, e) {
			w.pollAt(time.Now().Add(w.retry))
		} else {
			delete(w.polled, p)
		}
	}
	return due
}

// check checks p. If p is what its watch waits for, it removes the watch and returns the function to call.
func (w *Watcher) check(p Path) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.watches[p]
	if e == nil {
		return nil
	}
	w.mu.Unlock()
	done, err := e.done(p)
	w.mu.Lock()
	if w.watches[p] != e {
		return nil
	}
	e.failed = err != nil
	switch {
	case e.failed:
		w.polled[p] = true
		// A failed read, as without free descriptors, does not mean that the cgroup is empty.
		w.pollAt(time.Now().Add(w.retry))
		return nil
	case !done:
		return nil
	}
	w.forget(p)
	return e.notify
}
