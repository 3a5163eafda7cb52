// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// queue gathers the writes that arrive while a commit is under way into the next one, so that a hundred
// containers that start together cost a few syncs and not a hundred. A write that comes alone waits for nobody.
// (bbolt's own Batch makes each write wait for company: 10 ms by default, and with a wait of 1 µs sixteen
// writers had half the rate that they have here.)
type queue struct {
	mu      sync.Mutex
	idle    *sync.Cond // signalled when running becomes false
	waiting []*write
	running bool
	closed  bool

	owed map[uint64]func(*bbolt.Tx) error // releases that could not be written, by generation

	oldest   time.Time // when the oldest write of the batch under way was asked for; zero if none is
	failures uint64    // batches that could not be written
	last     error     // of the last batch
}

type write struct {
	change func(*bbolt.Tx) error
	done   chan error
	asked  time.Time
}

func (q *queue) init() { q.idle = sync.NewCond(&q.mu) }

// write runs change in a transaction of its own or shared with others, and returns when it is on disk.
// change may run more than once.
func (s *Store) write(change func(*bbolt.Tx) error) error {
	guard.MayWait("a write to the store")
	return <-s.begin(change)
}

// begin is write that does not wait: the channel says when it is on disk, or why not.
func (s *Store) begin(change func(*bbolt.Tx) error) <-chan error {
	w := &write{change, make(chan error, 1), time.Now()}
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		w.done <- ErrClosed
		return w.done
	}
	q.waiting = append(q.waiting, w)
	if !q.running {
		q.running = true
		go s.commit()
	}
	return w.done
}

// commit runs until nobody waits.
func (s *Store) commit() {
	q := &s.queue
	for {
		q.mu.Lock()
		batch := q.waiting
		q.waiting = nil
		if len(batch) == 0 {
			q.running = false
			q.oldest = time.Time{}
			q.idle.Broadcast()
			q.mu.Unlock()
			return
		}
		q.oldest = batch[0].asked
		q.mu.Unlock()
		s.commitOwed()
		err := s.commitBatch(batch)
		q.mu.Lock()
		if q.last = err; err != nil {
			q.failures++
		}
		q.mu.Unlock()
	}
}

// owe has a change written before whatever comes next; nil: not any more.
func (q *queue) owe(generation uint64, change func(*bbolt.Tx) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.owed == nil {
		q.owed = make(map[uint64]func(*bbolt.Tx) error)
	}
	if q.owed[generation] = change; change == nil {
		delete(q.owed, generation)
	}
}

// oweToo has change written behind what is owed of that generation, if there is any, as one. It returns what is to be written now.
func (q *queue) oweToo(generation uint64, change func(*bbolt.Tx) error) func(*bbolt.Tx) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	owed := q.owed[generation]
	if owed == nil {
		return change
	}
	q.owed[generation] = func(tx *bbolt.Tx) error {
		if err := owed(tx); err != nil {
			return err
		}
		return change(tx)
	}
	return q.owed[generation]
}

// commitOwed writes what is owed, or leaves it for the next time.
func (s *Store) commitOwed() {
	q := &s.queue
	q.mu.Lock()
	owed := maps.Clone(q.owed)
	q.mu.Unlock()
	for generation, change := range owed {
		if s.update(change) != nil {
			return
		}
		q.owe(generation, nil)
	}
}

// commitBatch returns the last error of the batch's writes.
func (s *Store) commitBatch(batch []*write) error {
	err := s.update(func(tx *bbolt.Tx) error {
		for _, w := range batch {
			if err := w.change(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || len(batch) == 1 {
		for _, w := range batch {
			w.done <- err
		}
		return err
	}
	// One of them failed, and took the others' transaction with it: each alone, so that each gets its own answer.
	err = nil
	for _, w := range batch {
		one := s.update(w.change)
		if one != nil {
			err = one
		}
		w.done <- one
	}
	return err
}

// Progress is how long the oldest write waits for the disk, how many batches of writes have failed, and why the last one
// did; nil if it did not. It waits for nothing.
func (s *Store) Progress() (waiting time.Duration, failures uint64, err error) {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.oldest.IsZero():
		waiting = time.Since(q.oldest)
	case len(q.waiting) > 0:
		waiting = time.Since(q.waiting[0].asked)
	}
	return waiting, q.failures, q.last
}

// Retry begins a write that changes nothing if the last one failed: so that it is found out that the disk works again
// though nobody asks for anything.
func (s *Store) Retry() {
	q := &s.queue
	q.mu.Lock()
	failed := (q.last != nil || len(q.owed) > 0) && !q.running
	q.mu.Unlock()
	if failed {
		s.begin(func(tx *bbolt.Tx) error { return putAbout(tx, keySchema, Schema) })
	}
}

// close refuses new writes and waits for those that were taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for q.running {
		q.idle.Wait()
	}
}
