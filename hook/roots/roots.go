// SPDX-License-Identifier: Apache-2.0

// Package roots remembers what was made in root filesystems, and which slices use each of them.
//
// The files that a hook makes to bind on are to be removed when the container is over, but removing a file unbinds
// what is bound on it in every other mount namespace. Engines give each container a root of its own; with plain
// runc, or podman run --rootfs, two containers can share one, and the end of the first would then take
// the interceptor out of the second without a word. So there is one record per root directory, under a lock,
// and only the last user removes. It is kept in the run directory, which a reboot empties. It must never touch a root
// itself: what is removed there is package mount's to decide.
package roots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/hook/mount"
)

// User is a slice whose container runs on a root.
type User struct {
	Slice      string `json:"slice"`
	Generation uint64 `json:"generation"`
	// Dir is the slice's directory, which the enforcer removes when it releases the slice, however that came about:
	// a User without it is over, though its poststop hook never ran.
	Dir string `json:"dir"`
}

// Record is what is known about one root while it is locked.
type Record struct {
	Made  []mount.Place `json:"made,omitempty"`
	Users []User        `json:"users,omitempty"`
	Root  string        `json:"root,omitempty"` // where the root was seen last

	file *os.File
}

// Lock locks the record of root in dir, and makes it if there is none. It waits for another hook that is at work on
// the same root, until ctx is done.
func Lock(ctx context.Context, dir string, root mount.FileID) (*Record, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("the hook's records: %w", err)
	}
	return lockFile(ctx, dir, root, os.O_CREATE)
}

// Find is Lock for a record that exists; without one, its error is fs.ErrNotExist.
func Find(ctx context.Context, dir string, root mount.FileID) (*Record, error) {
	return lockFile(ctx, dir, root, 0)
}

func lockFile(ctx context.Context, dir string, root mount.FileID, create int) (*Record, error) {
	path := filepath.Join(dir, fmt.Sprintf("%x-%x.json", root.Dev, root.Inode))
	for {
		file, err := os.OpenFile(path, os.O_RDWR|create|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("the record of a root filesystem: %w", err)
		}
		if err = flock(ctx, file); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock the record %s: %w", path, err)
		}
		// The last user may have removed it between open and lock.
		if here, err := os.Lstat(path); err != nil || !same(file, here) {
			file.Close()
			continue
		}
		return load(file)
	}
}

func same(file *os.File, here fs.FileInfo) bool {
	there, err := file.Stat()
	return err == nil && os.SameFile(there, here)
}

// flock asks again and again rather than wait in the kernel, where a hook could not be called back.
func flock(ctx context.Context, file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another hook holds it: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// load reads what the file holds. A file that makes no sense is taken for an empty one: the worst that can
// follow is that two empty files stay in a root filesystem.
func load(file *os.File) (*Record, error) {
	r := &Record{file: file}
	// The first value only: Save may have been killed before it cut off what was longer before.
	if err := json.NewDecoder(io.LimitReader(file, 1<<20)).Decode(r); err != nil {
		r.Made, r.Users, r.Root = nil, nil, ""
	}
	r.Users = slices.DeleteFunc(r.Users, func(u User) bool {
		_, err := os.Stat(u.Dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	return r, nil
}

// Of is the root that the record is about; a zero FileID if its name was meddled with.
func (r *Record) Of() (id mount.FileID) {
	if _, err := fmt.Sscanf(filepath.Base(r.file.Name()), "%x-%x.json", &id.Dev, &id.Inode); err != nil {
		return mount.FileID{}
	}
	return id
}

// Sweep gives records without a user, locked, to over, which empties and saves them: those of containers whose runtime was
// killed, so that no poststop hook ran for them. It looks at most records of all that there are, those on which another hook
// is at work left out, so that a host with very many containers pays no more for each than one with a few.
func Sweep(dir string, most int, over func(*Record) error) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range rand.Perm(len(names))[:min(most, len(names))] {
		file, err := os.OpenFile(names[i], os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // its last user removed it
		}
		here, err := os.Lstat(names[i])
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || err != nil || !same(file, here) {
			file.Close()
			continue
		}
		record, err := load(file)
		if err == nil && len(record.Users) == 0 {
			err = over(record)
		}
		errs = append(errs, err, record.Close())
	}
	return errors.Join(errs...)
}

// Join enters a user; one of the same id is over, since it is that id's container that is being made.
func (r *Record) Join(u User) {
	r.Leave(u.Slice)
	r.Users = append(r.Users, u)
}

// Leave strikes a user out and returns it; its Generation is zero if there was none.
func (r *Record) Leave(slice string) User {
	i := slices.IndexFunc(r.Users, func(u User) bool { return u.Slice == slice })
	if i < 0 {
		return User{}
	}
	u := r.Users[i]
	r.Users = slices.Delete(r.Users, i, i+1)
	return u
}

// Save writes the record, which stays locked.
func (r *Record) Save() error {
	text, err := json.Marshal(r)
	if err == nil {
		_, err = r.file.WriteAt(text, 0)
	}
	if err == nil {
		err = r.file.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("write the record of a root filesystem: %w", err)
	}
	return nil
}

// Close unlocks the record, and removes it if it says nothing.
func (r *Record) Close() error {
	var err error
	if len(r.Made) == 0 && len(r.Users) == 0 {
		err = os.Remove(r.file.Name())
	}
	return errors.Join(err, r.file.Close())
}
