// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// betweenShared is the least time between two calls. Containers can cause any number of them, and each takes the driver's locks and a
// processor.
const betweenShared = 10 * time.Millisecond

// Shared lets concurrent callers share calls to the driver. Each caller gets the result of a call that began after its own Ask. At most one
// call runs and one is pending, for any number of callers. Results are read-only.
type Shared[T any] struct {
	Slot Slot
	Put  func() (T, error)

	mu   sync.Mutex
	next *shared[T] // pending call
	last time.Time  // end of the last call
}

type shared[T any] struct {
	answered chan struct{}
	value    T
	err      error
}

// Ask waits for a result. It returns ErrHangs after timeout.
func (s *Shared[T]) Ask(timeout time.Duration) (T, error) {
	guard.MayWait("a question to the driver")
	s.mu.Lock()
	q := s.next
	if q == nil {
		q = &shared[T]{answered: make(chan struct{})}
		s.next = q
		go s.put(q)
	}
	s.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-q.answered:
		return q.value, q.err
	case <-timer.C:
		var none T
		return none, ErrHangs
	}
}

func (s *Shared[T]) put(q *shared[T]) {
	s.Slot <- struct{}{} // a call that hangs keeps it
	s.mu.Lock()
	pause := betweenShared - time.Since(s.last)
	s.mu.Unlock()
	time.Sleep(pause)
	s.mu.Lock()
	s.next = nil // a later Ask needs another call
	s.mu.Unlock()
	q.value, q.err = s.Put()
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
	<-s.Slot
	close(q.answered)
}
