// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"
)

// fail has transactions end from now on as one does whose meta page is written and cannot be synced: its caller is told that it
// failed, the file has it, and bbolt goes on from the free pages that it names.
func fail(s *Store) (heal func()) {
	s.transact = func(change func(*bbolt.Tx) error) error {
		if err := errors.Join(s.db.Update(change), s.reread()); err != nil {
			return err
		}
		return syscall.EIO
	}
	return func() { s.transact = s.db.Update }
}

// block has nothing written to the file but by bbolt.
func block(t *testing.T, s *Store, path string) (heal func()) {
	t.Helper()
	good := s.file
	bad, err := os.Open(path)
	check(t, err)
	s.file = bad
	return func() { s.file = good; check(t, bad.Close()) }
}

// entries are all that there is, by bucket and key.
func entries(t *testing.T, s *Store) map[string]string {
	t.Helper()
	all := make(map[string]string)
	check(t, s.db.View(func(tx *bbolt.Tx) error {
		for _, bucket := range allBuckets {
			err := tx.Bucket(bucket).ForEach(func(key, value []byte) error {
				all[fmt.Sprintf("%s/%s", bucket, key)] = string(value)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return all
}

func TestAWriteThatTheDiskRefusedIsNotThere(t *testing.T) {
	for name, write := range map[string]func(*Store) error{
		"a new one":         func(s *Store) error { return s.PutSlice(example("new", 9)) },
		"another value":     func(s *Store) error { return s.PutSlice(example("a", 9)) },
		"one less":          func(s *Store) error { return s.DeleteSlice("a", 1) },
		"one that is over":  func(s *Store) error { return <-s.Forget(2) },
		"a pool":            func(s *Store) error { return s.DeletePool("p") },
		"a context's bytes": func(s *Store) error { return s.PutContext("NVIDIA H100", 1) },
		"a generation":      func(s *Store) error { _, err := s.NextGeneration(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "slices.db")
			s := mustOpen(t, path)
			check(t, s.PutSlice(example("a", 1)))
			check(t, s.PutSlice(example("b", 2)))
			check(t, s.Retire(example("b", 2)))
			check(t, s.PutPool(examplePool("p")))
			check(t, s.PutContext("NVIDIA H100", 500<<20))
			want := entries(t, s)
			refused := func() {
				t.Helper()
				if err := write(s); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EBADF) {
					t.Fatalf("the disk took it: %v", err)
				}
			}
			same := func(when string, s *Store) {
				t.Helper()
				if got := entries(t, s); !reflect.DeepEqual(got, want) {
					t.Errorf("%s:\ngot  %q\nwant %q", when, got, want)
				}
			}

			heal := fail(s)
			refused()
			same("at once", s)
			killed := filepath.Join(t.TempDir(), "slices.db")
			write1(t, killed, read(t, path))
			same("killed", mustOpen(t, killed))
			refused()
			same("again", s)

			unblock := block(t, s, path)
			refused()
			refused()
			unblock()
			heal()
			check(t, s.Close())
			s = mustOpen(t, path)
			same("closed, once the disk is well", s)

			heal, unblock = fail(s), block(t, s, path)
			refused()
			unblock()
			heal()
			check(t, s.write(func(*bbolt.Tx) error { return nil }))
			same("something else was written", s)
			check(t, write(s))
			if got := entries(t, s); reflect.DeepEqual(got, want) {
				t.Error("it is not there though the disk took it")
			}
			check(t, s.Close())
			mustOpen(t, path)
		})
	}
}

func TestWhatCannotBeUndoneLetsNothingElseBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	heal, unblock := fail(s), block(t, s, path)
	if err := s.PutSlice(example("refused", 1)); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	heal()
	if err := s.PutSlice(example("other", 2)); !errors.Is(err, syscall.EBADF) {
		t.Errorf("on top of what was refused: %v", err)
	}
	unblock()
	check(t, s.PutSlice(example("other", 2)))
	if got, err := s.Slices(); err != nil || len(got) != 1 || got[0].Request.ID != "other" {
		t.Errorf("%+v, %v", got, err)
	}
	unblock = block(t, s, path)
	fail(s)
	if err := s.PutSlice(example("refused", 1)); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("closed with something refused on the disk, in silence: %v", err)
	}
	unblock()
}

// Writes that came together are written each alone when the disk has refused them all, and each has its own answer.
func TestOfABatchWhatTheDiskRefusedIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	heal := fail(s)
	bad, tries := s.transact, 0
	s.transact = func(change func(*bbolt.Tx) error) error {
		if tries++; tries == 1 || tries == 3 { // together, and "b"
			return bad(change)
		}
		return s.db.Update(change)
	}
	var batch []*write
	for _, id := range []string{"a", "b", "c"} {
		key, value, err := encodeSlice(bucketSlices, example(id, 1))
		check(t, err)
		batch = append(batch, &write{change: func(tx *bbolt.Tx) error { return put(tx, bucketSlices, key, value) }, done: make(chan error, 1)})
	}
	if err := s.commitBatch(batch); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	heal()
	for i, refused := range []bool{false, true, false} {
		if err := <-batch[i].done; errors.Is(err, syscall.EIO) != refused {
			t.Errorf("%d: %v", i, err)
		}
	}
	check(t, s.Close())
	s = mustOpen(t, path)
	if got, err := s.Slices(); err != nil || len(got) != 2 || got[0].Request.ID != "a" || got[1].Request.ID != "c" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever is refused in between, the store is as one that was never asked for it.
func TestRefusedWritesLeaveNoTrace(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		paths := [2]string{filepath.Join(t.TempDir(), "slices.db"), filepath.Join(t.TempDir(), "twin.db")}
		s, twin := mustOpen(t, paths[0]), mustOpen(t, paths[1])
		for step := range 150 {
			write := randomWrite(r)
			if r.IntN(2) == 0 {
				heal, unblock := fail(s), func() {}
				if r.IntN(2) == 0 {
					unblock = block(t, s, paths[0])
				}
				if err := write(s); err == nil {
					check(t, write(twin)) // a generation that was reserved before
				}
				unblock()
				heal()
			} else {
				check(t, write(s))
				check(t, write(twin))
			}
			if r.IntN(10) == 0 {
				check(t, errors.Join(s.Close(), twin.Close()))
				s, twin = mustOpen(t, paths[0]), mustOpen(t, paths[1])
			} else if s.former != nil {
				continue
			}
			if got, want := entries(t, s), entries(t, twin); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d:\ngot  %q\nwant %q", seed, step, got, want)
			}
			check(t, verify(read(t, paths[0])))
		}
	}
}

func randomWrite(r *rand.Rand) func(*Store) error {
	id, generation := fmt.Sprint("slice-", r.IntN(12)), uint64(r.IntN(3))
	slice := example(id, generation)
	slice.Dir = strings.Repeat("long/", r.IntN(3)*r.IntN(900))
	return []func(*Store) error{
		func(s *Store) error { return s.PutSlice(slice) },
		func(s *Store) error { return s.DeleteSlice(id, generation) },
		func(s *Store) error { return s.PutPool(examplePool(id)) },
		func(s *Store) error { return s.DeletePool(id) },
		func(s *Store) error { return s.PutContext(id, generation) },
		func(s *Store) error { _, err := s.NextGeneration(); return err },
	}[r.IntN(6)]
}
