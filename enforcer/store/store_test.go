// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func example(id string, generation uint64) Slice {
	return Slice{
		Request: api.RegisterRequest{
			ID: id, PID: 4711, Container: id, Pools: api.PoolNames{"night"}, Tenant: "physics", Mode: api.Enforce, TTL: time.Hour,
			Quotas: []api.Quota{{Device: api.AllDevices, Percent: 50}, {Device: "GPU-1", Bytes: 4 << 30}},
		},
		Generation: generation,
		Created:    time.Date(2024, 5, 17, 12, 0, 0, 123, time.UTC),
		Limits:     []Limit{{Device: "GPU-1", Bytes: 4 << 30, Total: 80 << 30, Most: 6 << 30}},
		InitStart:  123456789, Native: true,
		CgroupMount: "/sys/fs/cgroup", CgroupRel: "/docker/" + id, CgroupInode: 1 << 60, CgroupV2: true,
		Dir: "/run/gpuslice/" + id, Ledger: Ledger{[16]byte{1, 2, 255}, 25, 1 << 63},
	}
}

func released(slice Slice) Slice {
	slice.Released = true
	return slice
}

func examplePool(name string) Pool {
	return Pool{
		Name: name, Quotas: []api.Quota{{Device: api.AllDevices, Percent: 50}, {Device: "GPU-1", Bytes: 4 << 30}},
		Created: time.Date(2024, 5, 17, 12, 0, 0, 123, time.UTC),
	}
}

func examplePoolState() PoolState {
	return PoolState{Limits: []Limit{{Device: "GPU-1", Bytes: 4 << 30, Total: 80 << 30}}, Ledger: Ledger{[16]byte{1, 2, 255}, 25, 1 << 63}}
}

// place has the directories of a store that is reopened.
type place struct {
	t testing.TB
	Options
	log strings.Builder
}

func newPlace(t testing.TB) *place {
	p := &place{t: t}
	dir := t.TempDir()
	p.Options = Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Boot: "5f3c", Log: slog.New(slog.NewTextHandler(&p.log, nil))}
	return p
}

func (p *place) records() string   { return RecordsDir(p.RunDir, p.Boot) }
func (p *place) stateFile() string { return filepath.Join(p.StateDir, StateName) }

// record returns the file of a slice.
func (p *place) record(generation uint64) string {
	return filepath.Join(p.records(), sliceKind+"-"+sliceKey(generation))
}

// open opens a store with undamaged files.
func (p *place) open() *Store {
	p.t.Helper()
	s := p.openAny()
	must.True(p.t, !strings.Contains(p.log.String(), "level=ERROR"), "an undamaged file was reported:", p.log.String())
	return s
}

func (p *place) openAny() *Store {
	p.t.Helper()
	p.log.Reset()
	s := must.Get(Open(p.Options))(p.t)
	p.t.Cleanup(func() { s.Close() })
	return s
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(path))(t)
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.Do(t, os.WriteFile(path, data, 0o600))
}

func same[T any](t testing.TB, got, want T) {
	t.Helper()
	expect.True(t, reflect.DeepEqual(got, want), got, "want", want)
}

func TestRecordsSurviveARestart(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	want := []Slice{example("a", 2), example("b", 1)}
	for _, slice := range want {
		must.Do(t, s.PutSlice(slice))
	}
	must.Do(t, s.PutPoolState("night", examplePoolState()))
	must.Do(t, s.PutPool(examplePool("night")))
	cost := uint64(500 << 20)
	must.Do(t, s.PutContext("NVIDIA H100", cost))
	must.Do(t, s.Close())

	s = p.open()
	same(t, s.Slices(), want)
	same(t, s.PoolStates(), map[string]PoolState{"night": examplePoolState()})
	same(t, s.Pools(), []Pool{examplePool("night")})
	same(t, s.Contexts(), map[string]uint64{"NVIDIA H100": cost})
	must.Do(t, s.Close())

	p.Boot = "next" // of the host
	s = p.open()
	same(t, s.Slices(), nil)
	same(t, s.PoolStates(), map[string]PoolState{})
	same(t, s.Pools(), []Pool{examplePool("night")})
	same(t, s.Contexts(), map[string]uint64{"NVIDIA H100": cost})
	if files, _ := filepath.Glob(RecordsDir(p.RunDir, "*")); len(files) != 1 {
		t.Errorf("%q", files)
	}
}

func TestRecordsSurviveAKill(t *testing.T) {
	p, other := newPlace(t), newPlace(t)
	s := p.open()
	must.Do(t, s.PutSlice(example("a", 1)))
	must.Do(t, os.MkdirAll(other.RunDir, 0o700))
	must.Do(t, os.CopyFS(other.records(), os.DirFS(p.records())))                  // as left by a SIGKILL now
	write(t, filepath.Join(other.records(), newPrefix+"slice-2"), []byte("gpusl")) // and by one during a write
	must.Do(t, s.PutSlice(example("b", 2)))
	same(t, other.open().Slices(), []Slice{example("a", 1)})
	if left, _ := filepath.Glob(filepath.Join(other.records(), newPrefix+"*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAReleasedSliceLeavesItsIDFreeAndIsNotForgotten(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	first, second := example("a", 1), example("a", 2)
	must.Do(t, s.PutSlice(first))
	must.Do(t, s.Retire(first))
	must.Do(t, s.PutSlice(second))
	must.Do(t, s.Retire(first)) // again: the next slice of that id is another one
	must.Do(t, s.Close())

	s = p.open()
	same(t, s.Slices(), []Slice{second})
	same(t, s.Released(), []Slice{released(first)})
	must.Do(t, s.Forget("a", 1))
	must.Do(t, s.Forget("a", 1))
	must.Do(t, s.Close())
	s = p.open()
	must.Len(t, s.Released(), 0, "not forgotten")
	same(t, s.Slices(), []Slice{second})
}

// full makes all writes fail until room is called.
func full(p *place) (room func()) {
	var mu sync.Mutex
	err := error(syscall.ENOSPC)
	p.Before = func(string) error {
		mu.Lock()
		defer mu.Unlock()
		return err
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		err = nil
	}
}

func TestFailedReleaseIsWrittenWithTheNextChange(t *testing.T) {
	for name, next := range map[string]func(*Store) error{
		"a slice": func(s *Store) error { return s.PutSlice(example("another", 3)) },
		"closing": func(s *Store) error { return s.Close() },
		"a retry": func(s *Store) error {
			s.Retry()
			await.That(t, "it is written", func() bool {
				_, _, err := s.Progress()
				return err == nil
			})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			live, gone := example("over", 1), example("gone", 2)
			s := p.open()
			must.Do(t, s.PutSlice(live))
			must.Do(t, s.PutSlice(gone))
			must.Do(t, s.Close())
			room := full(p)
			s = p.open()
			for _, slice := range []Slice{live, gone} {
				expect.ErrorIs(t, s.Retire(slice), syscall.ENOSPC)
			}
			expect.ErrorIs(t, s.Forget("gone", 2), syscall.ENOSPC)
			if _, failures, err := s.Progress(); failures != 3 || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(failures, err)
			}
			room()
			must.Do(t, next(s))
			must.Do(t, s.Close())
			s = p.open()
			same(t, s.Released(), []Slice{released(live)})
			for _, slice := range s.Slices() {
				expect.Equal(t, slice.Request.ID, "another", "is not released")
			}
		})
	}
}

func TestSecondEnforcerIsRefused(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	must.Do(t, s.PutSlice(example("a", 1)))
	expect.ErrorIs(t, must.Err(Open(p.Options)), ErrLocked)
	must.Do(t, s.Close())
	same(t, p.open().Slices(), []Slice{example("a", 1)})
}

// A child that a killed enforcer had forked keeps its locks for a moment.
func TestBrieflyHeldLockIsAwaited(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	must.Do(t, s.PutSlice(example("a", 1)))
	time.AfterFunc(200*time.Millisecond, func() { _ = s.Close() })
	same(t, p.open().Slices(), []Slice{example("a", 1)})
}

func TestOneOfTwoEnforcersStartingTogetherWins(t *testing.T) {
	for range 5 {
		p := newPlace(t)
		p.Log = slog.New(slog.DiscardHandler)
		results := make(chan error, 4)
		var winners []*Store
		var mu sync.Mutex
		for range cap(results) {
			go func() {
				o := p.Options
				o.StateDir = t.TempDir() // so that only the run directory is shared
				s, err := Open(o)
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
		must.Len(t, winners, 1, "enforcers have the store")
		must.Do(t, winners[0].Close())
	}
}

// The records are in the host's memory.
func TestARecordThatIsWrittenAgainTakesNoMoreSpace(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	for generation := range uint64(100) {
		must.Do(t, s.PutSlice(example("slice", generation)))
		must.Do(t, s.PutSlice(example("slice", generation)))
		must.Do(t, s.Forget("slice", generation))
	}
	entries := must.Get(os.ReadDir(p.records()))(t)
	if len(entries) != 1 || entries[0].Name() != lockName {
		t.Errorf("%q", entries)
	}
}

func TestConcurrentWritersAllGetThrough(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	const writers, each = 16, 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				generation := uint64(w*each + i)
				id := fmt.Sprint("slice-", generation)
				expect.NoError(t, s.PutSlice(example(id, generation)))
				if i%2 == 0 {
					expect.NoError(t, s.Forget(id, generation))
				}
				expect.NoError(t, s.PutPool(examplePool(id)))
			}
		})
	}
	wg.Wait()
	must.Do(t, s.Close())
	s = p.open()
	expect.Equal(t, len(s.Slices()), writers*each/2, "slices")
	expect.Equal(t, len(s.Pools()), writers*each, "pools")
}

func TestAClosedStoreRefuses(t *testing.T) {
	s := newPlace(t).open()
	must.Do(t, s.Close())
	for _, err := range []error{s.PutSlice(example("a", 1)), s.Retire(example("a", 1)), s.PutPool(examplePool("p"))} {
		expect.ErrorIs(t, err, ErrClosed)
	}
}

// A hung disk delays only the callers that wait for it.
func TestHungWriteIsReportedAndBlocksNoSlice(t *testing.T) {
	p := newPlace(t)
	hang := make(chan struct{})
	p.Before = func(key string) error {
		if key == "pools/slow" {
			<-hang
		}
		return nil
	}
	s := p.open()
	if waiting, failures, err := s.Progress(); waiting != 0 || failures != 0 || err != nil {
		t.Errorf("progress without a write: %v, %d, %v", waiting, failures, err)
	}
	done := make(chan error, 1)
	go func() { done <- s.PutPool(examplePool("slow")) }()
	for {
		if waiting, _, _ := s.Progress(); waiting > 20*time.Millisecond {
			break
		}
		time.Sleep(time.Millisecond)
	}
	must.Do(t, s.PutSlice(example("a", 1)))
	close(hang)
	must.Do(t, <-done)
	if waiting, failures, err := s.Progress(); waiting != 0 || failures != 0 || err != nil {
		t.Errorf("%v, %d, %v", waiting, failures, err)
	}
}

// An owed record stays owed until it or a newer one is written.
func TestOwedRecordsSurviveAFailedWrite(t *testing.T) {
	p := newPlace(t)
	over, gone := example("over", 1), example("gone", 2)
	s := p.open()
	must.Do(t, s.PutSlice(over))
	must.Do(t, s.PutSlice(gone))
	obstacle := filepath.Join(p.records(), newPrefix+filepath.Base(p.record(1)))
	must.Do(t, os.MkdirAll(filepath.Join(obstacle, "x"), 0o700))
	expect.ErrorIs(t, s.Retire(over), syscall.EISDIR)
	for range 2 {
		expect.ErrorIs(t, s.PutSlice(example("another", 3)), syscall.EISDIR)
	}
	expect.ErrorIs(t, s.Forget("gone", 2), syscall.EISDIR)
	must.Do(t, os.RemoveAll(obstacle))
	must.Do(t, s.PutSlice(example("another", 3)))
	must.Do(t, s.Close())
	s = p.open()
	same(t, s.Released(), []Slice{released(over)})
	same(t, s.Slices(), []Slice{example("another", 3)})
}

// A full directory is detected without a write.
func TestUnwritableDirectoryIsReported(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	obstacle := filepath.Join(p.records(), newPrefix+"probe", "x")
	must.Do(t, os.MkdirAll(obstacle, 0o700))
	await.That(t, "it is found out", func() bool {
		s.Retry()
		_, _, err := s.Progress()
		return errors.Is(err, syscall.EISDIR)
	})
	must.Do(t, os.RemoveAll(filepath.Dir(obstacle)))
	await.That(t, "the store detects that there is room again", func() bool {
		s.Retry()
		_, _, err := s.Progress()
		return err == nil
	})
}
