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

// ErrWatched says that somebody watches the cgroup already.
var ErrWatched = errors.New("it is watched already")

// retryInterval is how often a cgroup is checked without an event: one whose last check failed, and one of v1 (silentV1).
const retryInterval = time.Second

// Watcher says when cgroups become empty or go. On v2 the kernel tells both (cgroup.events, and the parent
// directory for the removal, which the directory itself does not report). On v1 it tells the removal only: call
// Recheck.
//
// Every event is only a reason to check: what decides is Populated. So lost, merged and doubled events do no harm.
//
// It speaks inotify itself for the masks: fsnotify watches for chmod and the like too, so a container that owns its cgroup would
// keep the enforcer busy, and it leaves the kernel's watch behind where a path is used again.
type Watcher struct {
	inotify *os.File
	done    chan struct{}

	mu      sync.Mutex
	closed  bool
	watched map[Path]*watched
	soon    map[Path]bool           // to be checked without an event
	users   map[int32]map[Path]bool // inotify watch to the cgroups that it concerns
}

type watched struct {
	empty    func()
	wds      []int32
	failed   bool // the last check did: try again
	initDead bool // Recheck was called
}

// NewWatcher starts a Watcher.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch cgroups: inotify: %w: raise fs.inotify.max_user_instances", err)
	}
	w := &Watcher{
		inotify: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}),
		watched: make(map[Path]*watched), soon: make(map[Path]bool), users: make(map[int32]map[Path]bool),
	}
	go w.loop()
	return w, nil
}

// Watch calls empty once, when p has no process any more or is gone, which may be at once. It is called on
// the Watcher's goroutine, one at a time: it may call Watch and Unwatch, and must not wait for long.
func (w *Watcher) Watch(p Path, empty func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	if w.watched[p] != nil {
		return fmt.Errorf("watch cgroup %s: %w", p, ErrWatched)
	}
	e := &watched{empty: empty}
	w.watched[p] = e
	err := w.add(p, e, filepath.Dir(p.Dir()), unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR)
	if err == nil && p.V2 {
		err = w.add(p, e, filepath.Join(p.Dir(), "cgroup.events"), unix.IN_MODIFY)
	}
	if err != nil && !gone(err) {
		w.forget(p)
		return fmt.Errorf("watch cgroup %s: %w", p, err)
	}
	// It may have become empty before the watches were there. The loop checks, not this call, so that empty
	// never runs under its caller's locks.
	w.soon[p] = true
	w.wake()
	return nil
}

// add is called with mu held.
func (w *Watcher) add(p Path, e *watched, file string, mask uint32) error {
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	var werr error
	err = conn.Control(func(fd uintptr) {
		// Cgroups with one parent share a watch: the kernel returns the same number. MASK_ADD, or the mask of
		// a watch for another reason would be replaced.
		wd, werr = unix.InotifyAddWatch(int(fd), file, mask|unix.IN_MASK_ADD)
	})
	if err = errors.Join(err, werr); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: raise fs.inotify.max_user_watches", err)
		}
		return err
	}
	if w.users[int32(wd)] == nil {
		w.users[int32(wd)] = make(map[Path]bool)
	}
	w.users[int32(wd)][p] = true
	e.wds = append(e.wds, int32(wd))
	return nil
}

// Unwatch forgets p. It returns true if empty was not called and never will be.
func (w *Watcher) Unwatch(p Path) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forget(p)
}

// forget is called with mu held.
func (w *Watcher) forget(p Path) bool {
	e := w.watched[p]
	if e == nil {
		return false
	}
	delete(w.watched, p)
	delete(w.soon, p)
	for _, wd := range e.wds {
		delete(w.users[wd], p)
		if len(w.users[wd]) > 0 {
			continue
		}
		delete(w.users, wd)
		if conn, err := w.inotify.SyscallConn(); err == nil {
			// EINVAL if the kernel dropped the watch with its directory.
			_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
	return true
}

// wake makes the loop's read return, so that it checks what is due. It is called with mu held.
func (w *Watcher) wake() { _ = w.inotify.SetReadDeadline(time.Unix(1, 0)) }

// Close ends the Watcher; when it returns nothing is being called, nor will be. Not to be called by an empty function.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	err := w.inotify.Close()
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
			due = w.concerned(buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			due = w.due()
		default:
			return // closed
		}
		for _, p := range due {
			if empty := w.check(p); empty != nil {
				empty()
			}
		}
	}
}

// concerned are the cgroups that a batch of events is about; all of them, if the kernel lost some. What a directory tells of
// one cgroup, by its name, the others in it need not check: there may be thousands.
func (w *Watcher) concerned(events []byte) []Path {
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
			for p := range w.watched {
				set[p] = true
			}
		}
		for p := range w.users[wd] {
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

// due are the cgroups that are to be checked without an event. It sets the time of the next check, before
// this one is made: a wake in between shortens it again.
func (w *Watcher) due() []Path {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := make([]Path, 0, len(w.soon))
	var next time.Time // never
	for p := range w.soon {
		due = append(due, p)
		if e := w.watched[p]; e.failed || silentV1(p, e) {
			next = time.Now().Add(retryInterval)
		} else {
			delete(w.soon, p)
		}
	}
	if !w.closed {
		_ = w.inotify.SetReadDeadline(next)
	}
	return due
}

// check returns what is to be called for p, if it is empty or gone, and forgets it then.
func (w *Watcher) check(p Path) func() {
	populated, err := Populated(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.watched[p]
	if e == nil {
		return nil
	}
	e.failed = err != nil
	switch {
	case e.failed:
		w.soon[p] = true
		// Not to be read just now (out of descriptors, say) does not mean that it is empty.
		if !w.closed {
			_ = w.inotify.SetReadDeadline(time.Now().Add(retryInterval))
		}
		return nil
	case populated:
		return nil
	}
	w.forget(p)
	return e.empty
}
