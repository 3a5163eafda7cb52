// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func example(id string, generation uint64) Slice {
	return Slice{
		Request: api.RegisterRequest{
			ID: id, PID: 4711, Container: id, Pool: "night", Tenant: "physics", Mode: api.Enforce, TTL: time.Hour,
			Quotas: []api.Quota{{Device: api.AllDevices, Percent: 50}, {Device: "GPU-1", Bytes: 4 << 30}},
		},
		Generation: generation,
		Created:    time.Date(2024, 5, 17, 12, 0, 0, 123, time.UTC),
		Limits:     []Limit{{Device: "GPU-1", Bytes: 4 << 30, Total: 80 << 30, Most: 6 << 30}},
		BootID:     "5f3c", InitStart: 123456789,
		CgroupMount: "/sys/fs/cgroup", CgroupRel: "/docker/" + id, CgroupInode: 1 << 60, CgroupV2: true,
		Dir: "/run/gpuslice/" + id, LedgerName: [16]byte{1, 2, 255}, LedgerDev: 25, LedgerInode: 1 << 63,
	}
}

func mustOpen(t testing.TB, path string) *Store {
	t.Helper()
	s, report, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if report != "" {
		t.Fatalf("a healthy file was reported: %s", report)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasStoredIsThereAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "slices.db")
	s := mustOpen(t, path)
	want := []Slice{example("a", 1), example("b", 2)}
	for _, slice := range want {
		check(t, s.PutSlice(slice))
	}
	check(t, s.PutContext("NVIDIA H100", 500<<20))
	check(t, s.Close())

	s = mustOpen(t, path)
	got, err := s.Slices()
	check(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	contexts, err := s.Contexts()
	check(t, err)
	if want := map[string]uint64{"NVIDIA H100": 500 << 20}; !reflect.DeepEqual(contexts, want) {
		t.Errorf("contexts: got %v, want %v", contexts, want)
	}
}

func TestARecordFromBeforeThereWasAHighestLimitHasNone(t *testing.T) {
	text := `{"request":{"id":"a","pid":1,"quotas":null},"generation":1,"limits":[{"device":"GPU-1","bytes":5,"total":9}]}`
	slice, err := decodeSlice(bucketSlices, "a", seal(bucketSlices, "a", []byte(text)))
	check(t, err)
	if want := []Limit{{Device: "GPU-1", Bytes: 5, Total: 9}}; !reflect.DeepEqual(slice.Limits, want) {
		t.Errorf("%+v", slice.Limits)
	}
}

func TestWhatWasStoredIsThereThoughTheEnforcerNeverClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	check(t, s.PutSlice(example("a", 1)))
	data := read(t, path) // what a SIGKILL now would leave
	check(t, s.PutSlice(example("b", 1)))

	other := filepath.Join(t.TempDir(), "slices.db")
	write1(t, other, data)
	got, err := mustOpen(t, other).Slices()
	check(t, err)
	if len(got) != 1 || got[0].Request.ID != "a" {
		t.Errorf("got %+v", got)
	}
}

func TestDeleteConcernsOneGenerationOnly(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "slices.db"))
	check(t, s.PutSlice(example("a", 2)))
	check(t, s.DeleteSlice("a", 1)) // the late release of the container's life before `docker restart`
	if got, _ := s.Slices(); len(got) != 1 {
		t.Errorf("the release of an older generation deleted the newer: %+v", got)
	}
	check(t, s.DeleteSlice("a", 2))
	check(t, s.DeleteSlice("a", 2))
	if got, _ := s.Slices(); len(got) != 0 {
		t.Errorf("still there: %+v", got)
	}
}

func TestAReleasedSliceLeavesItsIDFreeAndIsNotForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	first, second := example("a", 1), example("a", 2)
	check(t, s.PutSlice(first))
	check(t, s.Retire(first))
	check(t, s.PutSlice(second))
	check(t, s.Retire(first)) // again: the next slice of that id is another
	check(t, s.Close())

	s = mustOpen(t, path)
	if got, err := s.Slices(); err != nil || !reflect.DeepEqual(got, []Slice{second}) {
		t.Errorf("active: %+v, %v", got, err)
	}
	if got, err := s.Released(); err != nil || !reflect.DeepEqual(got, []Slice{first}) {
		t.Errorf("released: %+v, %v", got, err)
	}
	check(t, <-s.Forget(1))
	check(t, <-s.Forget(1))
	if got, _ := s.Released(); len(got) != 0 {
		t.Errorf("still there: %+v", got)
	}
	check(t, s.Close())
	mustOpen(t, path) // and the file's sum is right
}

func TestAReleaseThatTheDiskDidNotTakeIsWrittenOnceItTakesAnything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	over, gone := example("over", 1), example("gone", 2)
	check(t, s.PutSlice(over))
	check(t, s.PutSlice(gone))

	heal := fail(s)
	for _, slice := range []Slice{over, gone} {
		if err := s.Retire(slice); err == nil {
			t.Fatal("the disk took it")
		}
	}
	if err := <-s.Forget(gone.Generation); err == nil {
		t.Fatal("the disk took it")
	}
	heal()
	check(t, s.PutSlice(example("another", 3)))
	last := example("last", 4)
	check(t, s.PutSlice(last))
	heal = fail(s)
	if err := s.Retire(last); err == nil {
		t.Fatal("the disk took it")
	}
	heal()
	check(t, s.Close()) // or when the store is closed

	s = mustOpen(t, path)
	if got, err := s.Released(); err != nil || !reflect.DeepEqual(got, []Slice{over, last}) {
		t.Errorf("released: %+v, %v", got, err)
	}
	// What has been cleared away meanwhile is forgotten as well.
	if got, err := s.Slices(); err != nil || len(got) != 1 || got[0].Request.ID != "another" {
		t.Errorf("active: %+v, %v", got, err)
	}
}

func TestGenerationsNeverRepeat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	var last uint64
	for restart := range 4 {
		s := mustOpen(t, path)
		for range generationStep + 3 {
			g, err := s.NextGeneration()
			check(t, err)
			if g <= last {
				t.Fatalf("restart %d: generation %d after %d", restart, g, last)
			}
			last = g
		}
		check(t, s.Close())
	}
}

func TestASecondEnforcerIsTurnedAwayAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	check(t, s.PutSlice(example("a", 1)))
	start := time.Now()
	if _, _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("it took %v", d)
	}
	if got, _ := s.Slices(); len(got) != 1 {
		t.Error("the first enforcer lost its slice")
	}
}

func TestOneOfTwoEnforcersStartingTogetherWins(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "slices.db")
		results := make(chan error, 4)
		var winners []*Store
		var mu sync.Mutex
		for range cap(results) {
			go func() {
				s, _, err := Open(path)
				if err == nil {
					mu.Lock()
					winners = append(winners, s)
					mu.Unlock()
				}
				results <- err
			}()
		}
		for range cap(results) {
			if err := <-results; err != nil && !errors.Is(err, ErrLocked) {
				t.Error(err)
			}
		}
		// All may lose to one another's inspection, which is a second's matter for systemd; never may two win.
		if len(winners) > 1 {
			t.Fatalf("%d enforcers have the store", len(winners))
		}
		for _, s := range winners {
			check(t, s.Close())
		}
	}
}

func TestAWriteThatFailsDoesNotFailItsCompany(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "slices.db"))
	boom := errors.New("boom")
	batch := []*write{
		{change: func(tx *bbolt.Tx) error { return putAbout(tx, keyGeneration, 7) }, done: make(chan error, 1)},
		{change: func(*bbolt.Tx) error { return boom }, done: make(chan error, 1)},
	}
	s.commitBatch(batch)
	if err := <-batch[0].done; err != nil {
		t.Errorf("the good write: %v", err)
	}
	if err := <-batch[1].done; !errors.Is(err, boom) {
		t.Errorf("the bad write: %v", err)
	}
}

func TestConcurrentWritersAllGetThrough(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	const writers, each = 16, 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if err := s.PutSlice(example(id, 1)); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := s.DeleteSlice(id, 1); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	check(t, s.Close())
	got, err := mustOpen(t, path).Slices()
	check(t, err)
	if len(got) != writers*each/2 {
		t.Errorf("%d slices, want %d", len(got), writers*each/2)
	}
}

func TestAClosedStoreRefuses(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "slices.db"))
	check(t, s.Close())
	if err := s.PutSlice(example("a", 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func BenchmarkPutSlice(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(b.TempDir(), "slices.db"))
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range writers {
				wg.Go(func() {
					for range b.N / writers {
						_ = s.PutSlice(example(fmt.Sprint("slice-", w), 1))
					}
				})
			}
			wg.Wait()
		})
	}
}

// A disk that hangs is a transaction that does not end.
func TestAWriteThatTheDiskDoesNotTakeIsSeen(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "slices.db"))
	if waiting, failures, err := s.Progress(); waiting != 0 || failures != 0 || err != nil {
		t.Errorf("nothing was written: %v, %d, %v", waiting, failures, err)
	}
	hang, err := s.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	first := s.begin(func(*bbolt.Tx) error { return nil })
	for {
		if waiting, _, _ := s.Progress(); waiting > 20*time.Millisecond {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := hang.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	// One that fails is told until one succeeds, which is tried without being asked.
	boom := errors.New("boom")
	if err := s.write(func(*bbolt.Tx) error { return boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	progress := func() (uint64, error) {
		for {
			if waiting, failures, err := s.Progress(); waiting == 0 {
				return failures, err
			}
			time.Sleep(time.Millisecond)
		}
	}
	if failures, err := progress(); failures != 1 || !errors.Is(err, boom) {
		t.Errorf("%d, %v", failures, err)
	}
	s.Retry()
	if failures, err := progress(); failures != 1 || err != nil {
		t.Errorf("after a retry: %d, %v", failures, err)
	}
}
