// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recordSchema is the version of a record. Raise it with a change of Slice or PoolState that an older gpuslice would misread.
const recordSchema = 1

const (
	lockName    = "lock"
	sliceKind   = "slice"
	poolKind    = "pool"
	newPrefix   = ".new-" // of a file that is being written; differs from each kind of record
	maxRecord   = 16 << 20
	recordsName = "records-"
)

// RecordsDir returns the directory of a boot's records in the run directory.
func RecordsDir(runDir, boot string) string { return filepath.Join(runDir, recordsName+boot) }

func sliceKey(generation uint64) string { return fmt.Sprintf("%016x", generation) }

// openRecords creates and locks this boot's directory, and reads the records. It removes the records of other boots unread: if the run
// directory is on a disk, they may be incomplete.
func (s *Store) openRecords(o Options) (err error) {
	s.records = RecordsDir(o.RunDir, o.Boot)
	if err := os.MkdirAll(s.records, 0o700); err != nil {
		return err
	}
	if info, err := os.Lstat(s.records); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is not a directory: move it away", s.records))
	}
	if s.lock, err = lock(filepath.Join(s.records, lockName)); err != nil {
		return err
	}
	others, err := filepath.Glob(RecordsDir(o.RunDir, "*"))
	for _, other := range others {
		if other != s.records {
			err = errors.Join(err, os.RemoveAll(other))
			o.Log.Info("removed the slices' records of an earlier boot", "directory", other)
		}
	}
	if err == nil {
		err = s.readRecords(o)
	}
	if err != nil {
		return errors.Join(err, s.lock.Close())
	}
	return nil
}

func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Lock locks a file. It returns ErrLocked if another process holds the lock for lockPatience. The lock ends with the process.
func Lock(f *os.File) error {
	const pace = 10 * time.Millisecond
	// Count down by attempts, not by the clock: the other process may have stood still, too.
	for left := lockPatience; ; left -= pace {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		case left <= 0:
			return ErrLocked
		}
		time.Sleep(pace)
	}
}

// readRecords reads all records. It renames and reports an unusable record.
func (s *Store) readRecords(o Options) error {
	entries, err := os.ReadDir(s.records)
	if err != nil {
		return err
	}
	s.slices, s.pools = make(map[uint64]Slice), make(map[string]PoolState)
	for _, entry := range entries {
		name := entry.Name()
		kind, key, _ := strings.Cut(name, "-")
		path := filepath.Join(s.records, name)
		switch {
		case strings.HasPrefix(name, newPrefix): // an interrupted write
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		case kind != sliceKind && kind != poolKind:
			continue
		}
		data, err := readRegular(path, maxRecord)
		if err == nil {
			err = s.take(kind, key, data)
		}
		if errors.Is(err, errUnusable) {
			err = setAside(o, path, filepath.Join(o.RunDir, name), err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take adds the contents of a record.
func (s *Store) take(kind, key string, data []byte) error {
	text, err := unseal(kind, key, recordSchema, data)
	if err != nil {
		return err
	}
	if kind == poolKind {
		var p PoolState
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("%w: %w", errUnusable, err)
		}
		s.pools[key] = p
		return nil
	}
	var slice Slice
	generation, err := strconv.ParseUint(key, 16, 64)
	if err == nil {
		err = json.Unmarshal(text, &slice)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	if generation != slice.Generation {
		return fmt.Errorf("%w: the record is of generation %d", errUnusable, slice.Generation)
	}
	s.slices[generation] = slice
	return nil
}

// put replaces a record, or removes it if text is nil. A reader finds the old record or the new one, also after a SIGKILL. It syncs
// nothing, since no record outlives the boot.
func (s *Store) put(kind, key string, text []byte) error {
	name := kind + "-" + key
	path, temporary := filepath.Join(s.records, name), filepath.Join(s.records, newPrefix+name)
	if text == nil {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	err := os.WriteFile(temporary, seal(kind, key, recordSchema, text), 0o600)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

// write writes the owed records, and then a record. The caller orders the writes of one record; those of different records may overlap.
func (s *Store) write(label, kind, key string, text []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	err := s.mayWrite(label)
	if err == nil {
		err = s.putOwed()
	}
	if err == nil {
		err = s.put(kind, key, text)
	}
	s.end(&s.runErr, err)
	return err
}

// owed is a record of a slice with a failed write. A nil text stands for its deletion.
type owed struct{ text []byte }

// probe writes and removes a file. It fails where the write of a record would fail.
func (s *Store) probe() error {
	path := filepath.Join(s.records, newPrefix+"probe")
	err := os.WriteFile(path, make([]byte, 4096), 0o600)
	if removed := os.Remove(path); err == nil {
		err = removed
	}
	return err
}

// putOwed writes the owed records. Each stays owed until it is written.
func (s *Store) putOwed() error {
	s.mu.Lock()
	nothingOwed := len(s.owed) == 0
	s.mu.Unlock()
	if nothingOwed {
		return nil
	}
	s.settling <- struct{}{}
	defer func() { <-s.settling }()
	s.mu.Lock()
	all := maps.Clone(s.owed)
	s.mu.Unlock()
	for generation, record := range all {
		if err := s.put(sliceKind, sliceKey(generation), record.text); err != nil {
			return err
		}
		s.mu.Lock()
		if s.owed[generation] == record { // no newer one
			delete(s.owed, generation)
		}
		s.mu.Unlock()
	}
	return nil
}

func sliceLabel(id string) string { return "slices/" + id }

// PutSlice writes a slice, and replaces the record of its generation.
func (s *Store) PutSlice(slice Slice) error {
	slice.Released = false
	text, err := json.Marshal(slice)
	if err == nil {
		err = s.write(sliceLabel(slice.Request.ID), sliceKind, sliceKey(slice.Generation), text)
	}
	if err != nil {
		return fmt.Errorf("cannot store slice %s: %w", slice.Request.ID, err)
	}
	return nil
}

// Retire writes a slice as released. A failed write is owed, and precedes the next write, since a released slice stays released.
func (s *Store) Retire(slice Slice) error {
	slice.Released = true
	text, err := json.Marshal(slice)
	if err == nil {
		err = s.writeOrOwe(slice.Request.ID, slice.Generation, text)
	}
	if err != nil {
		return fmt.Errorf("cannot store the release of slice %s: %w", slice.Request.ID, err)
	}
	return nil
}

// Forget deletes the record of a slice, or owes the deletion. It succeeds without a record. If a restart finds the record, it repeats the
// cleanup.
func (s *Store) Forget(id string, generation uint64) error {
	if err := s.writeOrOwe(id, generation, nil); err != nil {
		return fmt.Errorf("cannot delete slice %s from the store: %w", id, err)
	}
	return nil
}

func (s *Store) writeOrOwe(id string, generation uint64, text []byte) error {
	err := s.write(sliceLabel(id), sliceKind, sliceKey(generation), text)
	if err != nil {
		s.mu.Lock()
		s.owed[generation] = &owed{text}
		s.mu.Unlock()
	}
	return err
}

// Slices returns the slices that Open found, without released ones, ordered by id.
func (s *Store) Slices() []Slice {
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.slices)), func(slice Slice) bool { return slice.Released })
	slices.SortFunc(all, func(a, b Slice) int { return cmp.Compare(a.Request.ID, b.Request.ID) })
	return all
}

// Released returns the released slices that Open found, without forgotten ones, ordered by generation.
func (s *Store) Released() []Slice {
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.slices)), func(slice Slice) bool { return !slice.Released })
	slices.SortFunc(all, func(a, b Slice) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

// PutPoolState writes the ledger of a pool in this boot.
func (s *Store) PutPoolState(name string, p PoolState) error {
	text, err := json.Marshal(p)
	if err == nil {
		err = s.write("pools/"+name, poolKind, name, text)
	}
	if err != nil {
		return fmt.Errorf("cannot store the ledger of pool %s: %w", name, err)
	}
	return nil
}

// PoolStates returns the ledgers of pools that Open found, by name, including those of deleted pools.
func (s *Store) PoolStates() map[string]PoolState { return s.pools }
