// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"go.etcd.io/bbolt"
)

// A change that was refused with an error of the disk must not be in force after the next start.
//
// bbolt writes the pages of a transaction, syncs them, writes one of the two meta pages, and syncs that (Tx.Commit, of bbolt
// 1.5). When the last sync fails it says that the transaction failed, and reads its free pages again, to go on. But it
// does so by its memory map, which shows the meta page that was just written (Tx.rollback, DB.meta): so the next transaction
// builds on the refused one, and so does the next enforcer.
//
// A transaction writes to free pages only. So with its meta page put back as it was, the other one is the newest again, and all
// that it names is there.

// metaPage is a meta page as it was before a transaction wrote it.
type metaPage struct {
	at   int64 // in the file
	data []byte
}

// update runs change in a transaction. If that fails it is undone at once; or, if the disk does not take that either,
// before anything else is written, and when the store is closed. It is for one goroutine at a time.
func (s *Store) update(change func(*bbolt.Tx) error) error {
	if err := s.undo(); err != nil {
		return err
	}
	former, err := s.nextMeta()
	if err != nil {
		return err
	}
	if err = s.transact(change); err == nil {
		return nil
	}
	now := make([]byte, len(former.data))
	if _, readErr := s.file.ReadAt(now, former.at); readErr != nil || !bytes.Equal(now, former.data) {
		s.former = former
		_ = s.undo()
	}
	return err
}

// nextMeta reads the meta page that the next transaction writes: the older one, since they are written in turn.
func (s *Store) nextMeta() (*metaPage, error) {
	size := s.pageSize
	both := make([]byte, 2*size)
	if _, err := s.file.ReadAt(both, 0); err != nil {
		return nil, err
	}
	first, firstErr := readMeta(both, 0, 0)
	second, secondErr := readMeta(both, uint64(size), 1)
	if err := errors.Join(firstErr, secondErr); err != nil {
		return nil, err
	}
	if first.transaction < second.transaction {
		return &metaPage{0, both[:size]}, nil
	}
	return &metaPage{int64(size), both[size:]}, nil
}

// undo puts back the meta page of a transaction that failed, if there is one.
func (s *Store) undo() error {
	if s.former == nil {
		return nil
	}
	_, err := s.file.WriteAt(s.former.data, s.former.at)
	if err == nil {
		err = syscall.Fdatasync(int(s.file.Fd())) // before its pages are written again
	}
	if err != nil {
		return fmt.Errorf("put back what was before a write that failed: %w", err)
	}
	if err := s.reread(); err != nil {
		return err
	}
	s.former = nil
	return nil
}

// reread has bbolt read its free pages by the newest meta page, which it does when it rolls back for a panic (DB.Update).
func (s *Store) reread() error {
	const rollBack = "roll back"
	defer func() {
		if p := recover(); p != nil && p != rollBack {
			panic(p)
		}
	}()
	return s.db.Update(func(*bbolt.Tx) error { panic(rollBack) })
}
