// SPDX-License-Identifier: Apache-2.0

package roots

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/hook/mount"
	"github.com/gpuslice/gpuslice/test/await"
)

var root = mount.FileID{Dev: 1, Inode: 2}

func lock(t *testing.T, dir string) *Record {
	t.Helper()
	r, err := Lock(t.Context(), dir, root)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func save(t *testing.T, r *Record) {
	t.Helper()
	if err := errors.Join(r.Save(), r.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestARecordIsRemovedWhenItIsEmpty(t *testing.T) {
	dir, slice := filepath.Join(t.TempDir(), "records"), t.TempDir()
	r := lock(t, dir)
	r.AddUser(User{Slice: "a", Generation: 1, Dir: slice})
	r.AddUser(User{Slice: "b", Generation: 2, Dir: slice})
	r.AddUser(User{Slice: "a", Generation: 3, Dir: slice})
	r.Made = []mount.Place{{Path: "etc/ld.so.preload", FileID: mount.FileID{Dev: 1, Inode: 9}}}
	save(t, r)

	r = lock(t, dir)
	want := []User{{"b", 2, slice}, {"a", 3, slice}}
	if !reflect.DeepEqual(r.Users, want) || len(r.Made) != 1 || r.Made[0].Inode != 9 {
		t.Errorf("got %+v", r)
	}
	if u := r.RemoveUser("a"); u.Generation != 3 {
		t.Errorf("left: %+v", u)
	}
	if u := r.RemoveUser("a"); u != (User{}) {
		t.Errorf("left twice: %+v", u)
	}
	r.Made = nil
	save(t, r) // one user and no file
	if r = lock(t, dir); !reflect.DeepEqual(r.Users, want[:1]) {
		t.Errorf("got %+v", r)
	}
	text, err := os.ReadFile(r.file.Name())
	if err != nil || !json.Valid(text) {
		t.Errorf("a record that became shorter is %q, %v", text, err)
	}
	r.RemoveUser("b")
	save(t, r)
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A directory that cannot be read may still belong to a slice.
func TestOnlyUsersOfReleasedSlicesAreRemoved(t *testing.T) {
	dir, slice := filepath.Join(t.TempDir(), "records"), filepath.Join(t.TempDir(), "slice")
	unknown := User{Slice: "b", Generation: 2, Dir: "/dev/null/slice"} // ENOTDIR
	if err := os.Mkdir(slice, 0o755); err != nil {
		t.Fatal(err)
	}
	r := lock(t, dir)
	r.AddUser(User{Slice: "a", Generation: 1, Dir: slice})
	r.AddUser(unknown)
	save(t, r)
	if err := os.Remove(slice); err != nil {
		t.Fatal(err)
	}
	r = lock(t, dir)
	defer r.Close()
	if !slices.Equal(r.Users, []User{unknown}) {
		t.Errorf("users %v", r.Users)
	}
}

func TestDamagedRecordIsReadAsEmpty(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"made": 1}`, "\x00\xff"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "1-2.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := lock(t, dir)
		if len(r.Users)+len(r.Made) != 0 {
			t.Errorf("%q: %+v", text, r)
		}
		r.Close()
	}
}

// The new, shorter text is written, and the file is not yet truncated.
func TestAKilledSaveLeavesTheNewRecord(t *testing.T) {
	dir := t.TempDir()
	text := `{"users":[{"slice":"a","generation":1,"dir":"/"}]}"generation":1,"dir":"/x"}]}`
	if err := os.WriteFile(filepath.Join(dir, "1-2.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := lock(t, dir)
	defer r.Close()
	if len(r.Users) != 1 || r.Users[0].Slice != "a" {
		t.Errorf("%+v", r.Users)
	}
}

func TestFindCreatesNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Find(t.Context(), dir, root); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("made %v", left)
	}
}

func TestOneHookAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	r := lock(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, dir, root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	r.Close() // removes the record

	var group sync.WaitGroup
	var inside, maxInside int
	var mu sync.Mutex
	for range 8 {
		group.Go(func() {
			for range 50 {
				r, err := Lock(t.Context(), dir, root)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				maxInside = max(maxInside, inside)
				mu.Unlock()
				mu.Lock()
				inside--
				mu.Unlock()
				r.Close()
			}
		})
	}
	group.Wait()
	if maxInside != 1 {
		t.Errorf("%d at a time", maxInside)
	}
}

func TestOnlyRecordsOfKilledHooksAreRemoved(t *testing.T) {
	dir, slice := filepath.Join(t.TempDir(), "records"), t.TempDir()
	made := []mount.Place{{Path: "etc/ld.so.preload", FileID: mount.FileID{Dev: 1, Inode: 9}}}
	enter := func(inode uint64, u User) *Record {
		t.Helper()
		r, err := Lock(t.Context(), dir, mount.FileID{Dev: 1, Inode: inode})
		if err != nil {
			t.Fatal(err)
		}
		r.Root, r.Made = "/root", made
		r.AddUser(u)
		if err := r.Save(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for inode := range uint64(3) {
		save(t, enter(10+inode, User{Slice: "over", Generation: 1, Dir: filepath.Join(slice, "gone")}))
	}
	save(t, enter(20, User{Slice: "runs", Generation: 1, Dir: slice}))
	busy := enter(30, User{Slice: "over", Generation: 1, Dir: filepath.Join(slice, "gone")})

	var swept []uint64
	sweepOne := func(r *Record) error {
		swept = append(swept, r.Of().Inode)
		if r.Root != "/root" || !reflect.DeepEqual(r.Made, made) {
			t.Errorf("got %+v", r)
		}
		r.Made = nil
		return r.Save()
	}
	if err := Sweep(dir, 100, sweepOne); err != nil {
		t.Fatal(err)
	}
	slices.Sort(swept)
	if !slices.Equal(swept, []uint64{10, 11, 12}) {
		t.Errorf("swept: %v", swept)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	looked := 0
	if err := Sweep(dir, 0, func(*Record) error { looked++; return nil }); err != nil || looked != 0 {
		t.Errorf("looked at %d: %v", looked, err)
	}
}

// opened counts this process's descriptors of a file.
func opened(t *testing.T, path string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == path {
			n++
		}
	}
	return n
}

// The last user removes the record while another hook waits for its lock.
func TestARecordThatWasReplacedMeanwhileIsNotTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	first := lock(t, dir)
	path := first.file.Name()
	got := make(chan *Record)
	go func() {
		r, err := Lock(t.Context(), dir, root)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	for deadline := time.Now().Add(await.Patience); opened(t, path) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has not opened the record")
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := lock(t, dir)
	second.AddUser(User{Slice: "a", Generation: 1, Dir: t.TempDir()})
	if err := errors.Join(second.Save(), first.file.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	if r := <-got; r == nil || len(r.Users) != 1 {
		t.Errorf("got %+v", r)
	} else {
		r.Close()
	}
}
