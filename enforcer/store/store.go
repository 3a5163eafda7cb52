// SPDX-License-Identifier: Apache-2.0

// Package store keeps what the enforcer must know again after a restart, in one bbolt file:
//
//	schema 1
//	├── "about"
//	│   ├── "schema"      uint64  raised by any change of this tree or of the values
//	│   ├── "generation"  uint64  generations below this one may have been given out
//	│   └── "sum"         uint64 × 2  number, and exclusive-or of the checksums, of all entries below
//	├── "slices"
//	│   └── <slice id>    Slice as JSON
//	├── "released"
//	│   └── <generation>  Slice as JSON: it is over, and what it left on the host is not yet cleared away
//	├── "pools"
//	│   └── <name>        Pool as JSON
//	└── "contexts"
//	    └── <device model>  uint64  learned bytes of a process's first context
//
// Every value ends in a CRC-32C of its bucket, key and value; numbers are big-endian.
//
// It owns that file. What it promises: a write that returned nil is on disk; one that failed is undone, as soon as the disk
// takes that; a file that is damaged or newer is never worked on and never silently emptied, but renamed aside and reported; no
// input makes it crash.
// It must never decide what a record means: whether a slice still lives is for the enforcer to find out.
package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Schema is the version of the bucket tree that this package reads and writes.
const Schema = 1

var (
	// ErrLocked says that another enforcer has the file open.
	ErrLocked = errors.New("another enforcer uses this state")
	// ErrClosed is returned by a Store after Close.
	ErrClosed = errors.New("the store is closed")
)

// Slice is all that a restarted enforcer needs to find a slice again, and to tell whether what it finds is
// still the same.
type Slice struct {
	Request    api.RegisterRequest `json:"request"`
	Generation uint64              `json:"generation"`
	Created    time.Time           `json:"created"`
	Limits     []Limit             `json:"limits"` // the devices of the ledger, in its order

	// A limit in the page may be higher than in Limits, for processes that are checkpointed.
	Suspended bool `json:"suspended,omitempty"`
	// Changing says that the limits of the page are being set to Limits, and may still be what they were.
	Changing bool `json:"changing,omitempty"`

	// Deadline is when the slice's time is over, since boot (CLOCK_BOOTTIME); 0 is never. Expired says that this was
	// seen, so that nothing more may be charged; and Asked when its processes were then asked to end, 0 if they were not.
	Deadline time.Duration `json:"deadline,omitempty"`
	Expired  bool          `json:"expired,omitempty"`
	Asked    time.Duration `json:"asked,omitempty"`

	// Native says that the driver may hold the cgroup to limits.
	Native bool `json:"native,omitempty"`

	BootID      string `json:"boot_id"`
	InitStart   uint64 `json:"init_start"` // start time of Request.PID, see package process
	CgroupMount string `json:"cgroup_mount,omitempty"`
	CgroupRel   string `json:"cgroup_rel,omitempty"`
	CgroupInode uint64 `json:"cgroup_inode,omitempty"`
	CgroupV2    bool   `json:"cgroup_v2,omitempty"`

	Dir         string   `json:"dir"`
	LedgerName  [16]byte `json:"ledger_name"`
	LedgerDev   uint64   `json:"ledger_dev"`
	LedgerInode uint64   `json:"ledger_inode"`

	// TokenSum is the SHA-256 of a session's token; it cannot be shown. Joined are the processes that showed the token.
	TokenSum []byte   `json:"token_sum,omitempty"`
	Joined   []Joined `json:"joined,omitempty"`

	// Survivors are the processes of a session that is released that lived on.
	Survivors []Process `json:"survivors,omitempty"`
}

// Process is one of this boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // see package process
}

// Joined is a process that joined a session.
type Joined struct {
	Process
	UID uint32 `json:"uid"`
}

// Limit is a quota of the request, resolved to one device.
type Limit struct {
	Device string `json:"device"` // a UUID
	Bytes  uint64 `json:"bytes"`
	Total  uint64 `json:"total"` // bytes of memory of the device

	// Most is the highest limit that was ever in force there, if that was more than Bytes: a process that charged it may hold it
	// still. Records of before there was this have none.
	Most uint64 `json:"most,omitempty"`
}

// Store is the open file. Its methods may be called by several goroutines.
type Store struct {
	db       *bbolt.DB
	file     *os.File                                 // the db's
	pageSize int                                      // of the file
	transact func(change func(*bbolt.Tx) error) error // db.Update

	queue  queue
	former *metaPage // still to be put back (undo.go)

	mu       sync.Mutex
	next     uint64 // the next generation to give out
	reserved uint64 // generations below this one are reserved on disk
}

// Close ends the Store, after the writes that were asked for. What is to be undone or owed still is tried once more.
func (s *Store) Close() error {
	s.queue.close()
	err := s.undo()
	s.commitOwed()
	if err := errors.Join(err, s.db.Close()); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// PutSlice writes a slice, in place of one of the same id.
func (s *Store) PutSlice(slice Slice) error { return s.BeginSlice(slice)() }

// BeginSlice is PutSlice in two halves: what it returns waits for the disk, and is called once. What is begun first is
// written first, or in the same step, whoever waits first: so an order that a lock gave is kept by those who wait
// without it, and what they wait for is one sync of the disk for all of them.
func (s *Store) BeginSlice(slice Slice) (wait func() error) {
	id, value, err := encodeSlice(bucketSlices, slice)
	if err != nil {
		return func() error { return err }
	}
	done := s.begin(func(tx *bbolt.Tx) error { return put(tx, bucketSlices, id, value) })
	return func() error {
		guard.MayWait("a write to the store")
		if err := <-done; err != nil {
			return fmt.Errorf("store slice %s: %w", slice.Request.ID, err)
		}
		return nil
	}
}

// DeleteSlice forgets the slice of that id, if it is of that generation. It is not an error if there is none: to
// release is idempotent, and one that was registered again since is another slice.
func (s *Store) DeleteSlice(id string, generation uint64) error {
	err := s.write(func(tx *bbolt.Tx) error { return removeSlice(tx, id, generation) })
	if err != nil {
		return fmt.Errorf("delete slice %s from the store: %w", id, err)
	}
	return nil
}

func removeSlice(tx *bbolt.Tx, id string, generation uint64) error {
	value := tx.Bucket(bucketSlices).Get([]byte(id))
	if value == nil {
		return nil
	}
	slice, err := decodeSlice(bucketSlices, id, value)
	if err != nil || slice.Generation != generation {
		return err
	}
	return remove(tx, bucketSlices, id)
}

// Retire moves a slice to those that are released, in one step: its id is free from then on. If the disk does not take
// that, it is written again once the disk takes anything, since who is released stays so.
func (s *Store) Retire(slice Slice) error {
	key, value, err := encodeSlice(bucketReleased, slice)
	if err != nil {
		return err
	}
	change := func(tx *bbolt.Tx) error {
		if err := removeSlice(tx, slice.Request.ID, slice.Generation); err != nil {
			return err
		}
		return put(tx, bucketReleased, key, value)
	}
	if err := s.write(change); err != nil {
		s.queue.owe(slice.Generation, change)
		return fmt.Errorf("store that slice %s is released: %w", slice.Request.ID, err)
	}
	return nil
}

// Forget deletes what is left of the released slice of that generation. It does not wait for the disk, since
// nothing depends on it: a restart that finds the record clears away again what is gone. The channel says when it is
// done; Close waits for it. It is not an error if there is none.
func (s *Store) Forget(generation uint64) <-chan error {
	return s.begin(s.queue.oweToo(generation, func(tx *bbolt.Tx) error { return remove(tx, bucketReleased, releasedKey(generation)) }))
}

// Slices returns all slices that are not released, ordered by id.
func (s *Store) Slices() ([]Slice, error) { return s.all(bucketSlices) }

// Released returns those that are released and not forgotten, in no order.
func (s *Store) Released() ([]Slice, error) { return s.all(bucketReleased) }

func (s *Store) all(bucket []byte) ([]Slice, error) {
	var slices []Slice
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(key, value []byte) error {
			slice, err := decodeSlice(bucket, string(key), value)
			if err != nil {
				return err
			}
			slices = append(slices, slice)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the stored slices: %w", err)
	}
	return slices, nil
}

// PutContext writes what a process's first context was learned to cost on devices of that model.
func (s *Store) PutContext(model string, bytes uint64) error {
	if model == "" {
		return errors.New("store a context's cost: the device has no name")
	}
	value := encodeNumber(bucketContexts, model, bytes)
	if err := s.write(func(tx *bbolt.Tx) error { return put(tx, bucketContexts, model, value) }); err != nil {
		return fmt.Errorf("store the context's cost of %q: %w", model, err)
	}
	return nil
}

// Contexts returns the learned costs of a first context, in bytes by device model.
func (s *Store) Contexts() (map[string]uint64, error) {
	contexts := make(map[string]uint64)
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketContexts).ForEach(func(model, value []byte) error {
			bytes, err := decodeNumber(bucketContexts, string(model), value)
			contexts[string(model)] = bytes
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the learned costs of contexts: %w", err)
	}
	return contexts, nil
}

// generationStep is how many generations are reserved by one write: most registrations need none.
const generationStep = 64

// NextGeneration returns a number that no slice of this store had before, higher than all of them. Numbers are
// skipped at a restart.
func (s *Store) NextGeneration() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == s.reserved {
		reserve := s.reserved + generationStep
		err := s.write(func(tx *bbolt.Tx) error { return putAbout(tx, keyGeneration, reserve) })
		if err != nil {
			return 0, fmt.Errorf("store the next generation: %w", err)
		}
		s.reserved = reserve
	}
	s.next++
	return s.next - 1, nil
}
