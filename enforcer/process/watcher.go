// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher reports the deaths of processes. One epoll set and one goroutine serve all processes, since a slice may have thousands. No death
// is lost: a pidfd stays readable.
type Watcher struct {
	epoll int
	wake  int // an eventfd that ends the loop
	done  chan struct{}

	mu      sync.Mutex
	closed  bool
	last    uint64
	watched map[uint64]watch
	keys    map[*Handle]uint64
}

type watch struct {
	handle *Handle
	died   func()
}

// wakeKey is the epoll key of the eventfd. Keys of processes count from 1.
const wakeKey = 0

func NewWatcher() (*Watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch processes: epoll_create: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("cannot watch processes: eventfd: %w", err)
	}
	w := &Watcher{
		epoll: epoll, wake: wake, done: make(chan struct{}),
		watched: make(map[uint64]watch), keys: make(map[*Handle]uint64),
	}
	if err := w.add(wake, wakeKey, unix.EPOLLIN); err != nil {
		unix.Close(wake)
		unix.Close(epoll)
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	go w.loop()
	return w, nil
}

// add adds fd to the epoll set. The 64 bits of data in an event are the key, never the descriptor, so that an event of a closed descriptor
// is not attributed to a new one with the same number.
func (w *Watcher) add(fd int, key uint64, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &e)
}

func keyOf(e *unix.EpollEvent) uint64 {
	return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
}

// Watch calls died once, when all threads of h's process have exited, possibly at once. The Watcher's goroutine calls these functions one
// at a time. died may call Watch and Unwatch, and must not block for long.
func (w *Watcher) Watch(h *Handle, died func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	if _, ok := w.keys[h]; ok {
		return fmt.Errorf("process %d is watched already", h.PID)
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return os.ErrClosed
	}
	w.last++
	if err := w.add(h.fd, w.last, unix.EPOLLIN|unix.EPOLLONESHOT); err != nil {
		return fmt.Errorf("cannot watch process %d: %w", h.PID, err)
	}
	w.watched[w.last] = watch{h, died}
	w.keys[h] = w.last
	return nil
}

// Unwatch removes the watch of h. It returns true if died was not called, and never will be. It returns false if h was not watched, or died
// was called or is running.
func (w *Watcher) Unwatch(h *Handle) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key, ok := w.keys[h]
	if !ok {
		return false
	}
	w.forget(h, key)
	return true
}

// forget removes the watch of h. Called with mu held.
func (w *Watcher) forget(h *Handle, key uint64) {
	delete(w.keys, h)
	delete(w.watched, key)
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd >= 0 { // otherwise close(2) has removed it from the set
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, h.fd, nil)
	}
}

func (w *Watcher) loop() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			// Only a closed or foreign descriptor gets here (EBADF, EINVAL). That is a bug, and must not read as "no process has exited".
			panic(fmt.Sprintf("process: epoll_wait: %v", err))
		}
		for i := range events[:n] {
			key := keyOf(&events[i])
			if key == wakeKey {
				return
			}
			if died := w.claim(key); died != nil {
				died()
			}
		}
	}
}

// claim removes the watch of a dead process, and returns the function to call. It returns nil after Unwatch.
func (w *Watcher) claim(key uint64) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch, ok := w.watched[key]
	if !ok {
		return nil
	}
	w.forget(watch.handle, key)
	return watch.died
}

// Close ends the Watcher. No function runs after it returns. It must not be called from a died function.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	if _, err := unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("cannot stop watching processes: %w", err)
	}
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	err := errors.Join(unix.Close(w.wake), unix.Close(w.epoll))
	w.epoll = -1 // a late Unwatch must not touch a reused descriptor
	return err
}
