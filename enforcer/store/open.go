// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// maxFile is more than a host full of slices needs by far; the file is read whole before it is trusted.
const maxFile = 256 << 20

// errNewer says that the file is of a later version of gpuslice (or of bbolt).
var errNewer = errors.New("it is of a newer version of gpuslice")

// Open opens the file, or makes it. If what is there cannot be used, it is renamed to <path>.damaged-<time> or
// <path>.newer-<time>, an empty one takes its place, and report is a sentence for the operator; report is ""
// otherwise. It returns ErrLocked at once if another enforcer has the file open.
func Open(path string) (s *Store, report string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, "", fmt.Errorf("open the store: %w", err)
	}
	if report, err = inspect(path); err != nil {
		return nil, "", fmt.Errorf("open the store %s: %w", path, err)
	}
	if s, err = load(path); err != nil {
		return nil, "", fmt.Errorf("open the store %s: %w", path, err)
	}
	return s, report, nil
}

// inspect makes sure that there is a usable file at path, and reports if it had to set one aside for that.
func inspect(path string) (report string, err error) {
	// NONBLOCK: opening a FIFO would wait for its other end.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", create(path)
	}
	if err != nil {
		return "", err
	}
	// The lock is bbolt's own, taken on the file that is looked at: a file that another enforcer writes to looks
	// damaged. Closing gives it back, and bbolt takes it again; whoever comes in between has the store.
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("it is not a regular file (%s): move it away", info.Mode().Type())
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return "", ErrLocked
		}
		return "", fmt.Errorf("lock it: %w", err)
	}
	var data []byte
	fault := fmt.Errorf("it has %d bytes, more than this file can have", info.Size())
	if info.Size() <= maxFile {
		if data, err = io.ReadAll(f); err != nil {
			return "", err // the disk fails: nothing is known about the file
		}
		fault = verify(data)
	}
	if fault == nil {
		return "", nil
	}
	aside, err := setAside(path, fault)
	if err != nil {
		return "", fmt.Errorf("it cannot be used (%w), nor be renamed: %w", fault, err)
	}
	if err := create(path); err != nil {
		return "", err
	}
	return fmt.Sprintf("the state in %s cannot be used: %v: it was kept as %s and an empty one was made; containers that run "+
		"now are no longer known, and what they ask for in addition is refused until they are started again", path, fault, aside), nil
}

func setAside(path string, fault error) (string, error) {
	kind := "damaged"
	if errors.Is(fault, errNewer) {
		kind = "newer"
	}
	base := fmt.Sprintf("%s.%s-%s", path, kind, time.Now().UTC().Format("20060102T150405Z"))
	// A link and not a rename: an earlier file that was set aside within this second must not be replaced.
	for n := 1; n < 1000; n++ {
		aside := base
		if n > 1 {
			aside = fmt.Sprintf("%s.%d", base, n)
		}
		err := os.Link(path, aside)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return aside, errors.Join(os.Remove(path), syncDir(filepath.Dir(path)))
	}
	return "", fmt.Errorf("there are too many files named %s", base)
}

// create makes an empty store. It appears under its name complete, or not at all: a crash half-way must not
// look like damage at the next start.
func create(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	temporary := f.Name()
	defer os.Remove(temporary)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(temporary, 0o600, nil)
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	err = errors.Join(db.Update(format), db.Close())
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	// Link fails if another enforcer was faster: then its file is the one.
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func format(tx *bbolt.Tx) error {
	for _, name := range allBuckets {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(
		putAbout(tx, keySchema, Schema),
		putAbout(tx, keyGeneration, 1),
		putAbout(tx, keySum, 0, 0),
	)
}

func load(path string) (*Store, error) {
	// The shortest Timeout there is: one try for the lock.
	s := &Store{}
	open := func(name string, flag int, mode os.FileMode) (file *os.File, err error) {
		s.file, err = os.OpenFile(name, flag, mode)
		return s.file, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 1, NoStatistics: true, OpenFile: open})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, ErrLocked
	}
	if err != nil {
		return nil, err
	}
	s.db, s.transact, s.pageSize = db, db.Update, db.Info().PageSize
	s.queue.init()
	err = db.View(func(tx *bbolt.Tx) (err error) {
		s.next, err = decodeNumber(bucketAbout, string(keyGeneration), tx.Bucket(bucketAbout).Get(keyGeneration))
		s.reserved = s.next
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// syncDir makes a name that was added to dir, or taken away, last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
