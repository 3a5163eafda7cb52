// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// betweenShared is the least time between two questions. Containers can cause as many as they like, and each takes the driver's locks and a
// processor.
const betweenShared = 10 * time.Millisecond

// Shared is one question that many may ask at a time. Each gets an answer to a question that was put after he asked, together with all who wait
// for the same one: one is under way, and one is next, however many ask. What is answered is nobody's to change.
type Shared[T any] struct {
	Slot Slot
	Put  func() (T, error)

	mu   sync.Mutex
	next *shared[T] // not put yet
	last time.Time  // when the one before it was answered
}

type shared[T any] struct {
	answered chan struct{}
	value    T
	err      error
}

// Ask waits for an answer for so long, and then it is ErrHangs.
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
	s.Slot <- struct{}{} // one that hangs keeps it
	s.mu.Lock()
	pause := betweenShared - time.Since(s.last)
	s.mu.Unlock()
	time.Sleep(pause)
	s.mu.Lock()
	s.next = nil // who asks from here on has another
	s.mu.Unlock()
	q.value, q.err = s.Put()
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
	<-s.Slot
	close(q.answered)
}
