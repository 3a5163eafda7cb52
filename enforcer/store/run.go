// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// runSchema is the version of the run directory's file.
const runSchema = 1

var (
	bucketAbout  = []byte("about")
	bucketSlices = []byte("slices")
	bucketPools  = []byte("pools")

	runBuckets = [][]byte{bucketAbout, bucketSlices, bucketPools}

	keySchema = []byte("schema")
)

// RunFile is the path of the run directory's file in a boot.
func RunFile(dir, boot string) string { return filepath.Join(dir, "state-"+boot+".db") }

// openRun opens the run directory's file. That of another boot is removed unread: in a run directory that is not in memory it may be
// half of what was written.
func (s *Store) openRun(o Options) error {
	if err := os.MkdirAll(o.RunDir, 0o755); err != nil {
		return err
	}
	path := RunFile(o.RunDir, o.Boot)
	others, err := filepath.Glob(RunFile(o.RunDir, "*"))
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != path {
			if err := os.Remove(other); err != nil {
				return err
			}
			o.Log.Info("removed the slices' records of an earlier boot", "file", other)
		}
	}
	err = s.loadRun(path)
	if errors.Is(err, errUnusable) {
		err = setAside(o, path, err)
	}
	if err == nil && s.run == nil || errors.Is(err, os.ErrNotExist) {
		if err := createRun(path); err != nil {
			return err
		}
		return s.loadRun(path)
	}
	return err
}

// createRun makes an empty file. It appears under its name complete, or not at all: an enforcer that is killed half-way must not look like
// damage to the next.
func createRun(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".state-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(f.Name(), 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true})
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range runBuckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return putSchema(tx)
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	// Link fails if another enforcer was faster: then its file is the one.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// errUnusable says that a file is damaged, or newer.
var errUnusable = errors.New("it cannot be used")

func (s *Store) loadRun(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file (%s): move it away", path, info.Mode().Type())
	case info.Size() == 0:
		return fmt.Errorf("%w: it is empty", errUnusable)
	}
	return whole(func() error {
		// Nothing is synced: see the package comment.
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: LockPatience, NoStatistics: true, NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType,
		})
		if err != nil {
			return openError(err)
		}
		if err := readAll(db); err != nil {
			return errors.Join(err, db.Close())
		}
		s.run = db
		return nil
	})
}

// openError is what an error of bbolt about opening a file means.
func openError(err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return ErrLocked
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) { // nothing is known about the file
		return err
	}
	return fmt.Errorf("%w: %w", errUnusable, err)
}

// whole runs f, which reads a file by its memory map: what is wrong with the file is an error, and not the end of the process.
func whole(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errUnusable, p)
		}
	}()
	return f()
}

// readAll finds out whether a file can be worked on.
func readAll(db *bbolt.DB) error {
	err := db.View(func(tx *bbolt.Tx) error {
		for _, name := range runBuckets {
			if tx.Bucket(name) == nil {
				return fmt.Errorf("%w: it has no bucket %q", errUnusable, name)
			}
		}
		b := tx.Bucket(bucketAbout).Get(keySchema)
		if len(b) != 8 {
			return fmt.Errorf("%w: it has no schema", errUnusable)
		}
		if schema := binary.BigEndian.Uint64(b); schema > runSchema {
			return fmt.Errorf("%w: %w (schema %d, this one knows %d)", errUnusable, errNewer, schema, runSchema)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = readSlices(db)
	_, more := readPoolStates(db)
	if err = errors.Join(err, more); err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	return nil
}

func putSchema(tx *bbolt.Tx) error {
	return tx.Bucket(bucketAbout).Put(keySchema, binary.BigEndian.AppendUint64(nil, runSchema))
}

// update runs change behind what is owed, in one transaction.
func (s *Store) update(change func(*bbolt.Tx) error) error {
	var owed map[uint64][]byte
	err := s.run.Update(func(tx *bbolt.Tx) error {
		s.mu.Lock()
		owed, s.owed = s.owed, make(map[uint64][]byte)
		s.mu.Unlock()
		for generation, value := range owed {
			if err := putRecord(tx, generation, value); err != nil {
				return err
			}
		}
		return change(tx)
	})
	if err != nil {
		s.mu.Lock()
		maps.Copy(owed, s.owed) // what is owed since is newer
		s.owed = owed
		s.mu.Unlock()
	}
	return err
}

// putRecord writes or, if it is nil, deletes a slice's record.
func putRecord(tx *bbolt.Tx, generation uint64, value []byte) error {
	b, key := tx.Bucket(bucketSlices), binary.BigEndian.AppendUint64(nil, generation)
	if value == nil {
		return b.Delete(key)
	}
	return b.Put(key, value)
}

// write runs change in a transaction.
func (s *Store) write(key string, change func(*bbolt.Tx) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	err := s.mayWrite(key)
	if err == nil {
		err = s.update(change)
	}
	s.end(&s.runErr, err)
	return err
}

func sliceKey(id string) string { return "slices/" + id }

// PutSlice writes a slice, in place of what is there of its generation.
func (s *Store) PutSlice(slice Slice) error {
	slice.Released = false
	value, err := json.Marshal(slice)
	if err == nil {
		err = s.write(sliceKey(slice.Request.ID), func(tx *bbolt.Tx) error { return putRecord(tx, slice.Generation, value) })
	}
	if err != nil {
		return fmt.Errorf("store slice %s: %w", slice.Request.ID, err)
	}
	return nil
}

// Retire writes a slice as one that is released. If it cannot be written that is owed, and written before whatever comes
// next, since a slice that is released stays so.
func (s *Store) Retire(slice Slice) error {
	slice.Released = true
	value, err := json.Marshal(slice)
	if err == nil {
		err = s.writeOrOwe(slice.Request.ID, slice.Generation, value)
	}
	if err != nil {
		return fmt.Errorf("store that slice %s is released: %w", slice.Request.ID, err)
	}
	return nil
}

// Forget deletes the record of a slice, or owes that. It is not an error if there is none: a restart that finds the record clears
// away again what is gone.
func (s *Store) Forget(id string, generation uint64) error {
	if err := s.writeOrOwe(id, generation, nil); err != nil {
		return fmt.Errorf("delete slice %s from the store: %w", id, err)
	}
	return nil
}

func (s *Store) writeOrOwe(id string, generation uint64, value []byte) error {
	err := s.write(sliceKey(id), func(tx *bbolt.Tx) error { return putRecord(tx, generation, value) })
	if err != nil {
		s.mu.Lock()
		s.owed[generation] = value
		s.mu.Unlock()
	}
	return err
}

// Slices returns all slices that are not released, ordered by id.
func (s *Store) Slices() ([]Slice, error) {
	all, err := readSlices(s.run)
	all = slices.DeleteFunc(all, func(slice Slice) bool { return slice.Released })
	slices.SortFunc(all, func(a, b Slice) int { return cmp.Compare(a.Request.ID, b.Request.ID) })
	return all, err
}

// Released returns those that are released and not forgotten, ordered by generation.
func (s *Store) Released() ([]Slice, error) {
	all, err := readSlices(s.run)
	return slices.DeleteFunc(all, func(slice Slice) bool { return !slice.Released }), err
}

func readSlices(db *bbolt.DB) ([]Slice, error) {
	var all []Slice
	err := db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketSlices).ForEach(func(key, value []byte) error {
			var slice Slice
			if err := json.Unmarshal(value, &slice); err != nil {
				return fmt.Errorf("slices/%x: %w", key, err)
			}
			if len(key) != 8 || binary.BigEndian.Uint64(key) != slice.Generation {
				return fmt.Errorf("slices/%x: the record is of generation %d", key, slice.Generation)
			}
			all = append(all, slice)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the stored slices: %w", err)
	}
	return all, nil
}

// PutPoolState writes what there is of a pool in this boot.
func (s *Store) PutPoolState(name string, p PoolState) error {
	value, err := json.Marshal(p)
	if err == nil {
		err = s.write("pools/"+name, func(tx *bbolt.Tx) error { return tx.Bucket(bucketPools).Put([]byte(name), value) })
	}
	if err != nil {
		return fmt.Errorf("store the ledger of pool %s: %w", name, err)
	}
	return nil
}

// PoolStates returns those of all pools, by name; of a pool that was deleted there may be one, too.
func (s *Store) PoolStates() (map[string]PoolState, error) { return readPoolStates(s.run) }

func readPoolStates(db *bbolt.DB) (map[string]PoolState, error) {
	states := make(map[string]PoolState)
	err := db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPools).ForEach(func(name, value []byte) error {
			var p PoolState
			if err := json.Unmarshal(value, &p); err != nil {
				return fmt.Errorf("pools/%.80q: %w", name, err)
			}
			states[string(name)] = p
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the stored pools: %w", err)
	}
	return states, nil
}
