// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"go.etcd.io/bbolt"
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
}

type write struct {
	change func(*bbolt.Tx) error
	done   chan error
}

func (q *queue) init() { q.idle = sync.NewCond(&q.mu) }

// write runs change in a transaction of its own or shared with others, and returns when it is on disk.
// change may run more than once.
func (s *Store) write(change func(*bbolt.Tx) error) error { return <-s.begin(change) }

// begin is write that does not wait: the channel says when it is on disk, or why not.
func (s *Store) begin(change func(*bbolt.Tx) error) <-chan error {
	w := &write{change, make(chan error, 1)}
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
			q.idle.Broadcast()
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		s.commitBatch(batch)
	}
}

func (s *Store) commitBatch(batch []*write) {
	err := s.db.Update(func(tx *bbolt.Tx) error {
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
		return
	}
	// One of them failed, and took the others' transaction with it: each alone, so that each gets its own answer.
	for _, w := range batch {
		w.done <- s.db.Update(w.change)
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
