// SPDX-License-Identifier: Apache-2.0

// Package roots records the files that hooks created in each root filesystem, and the slices that use it.
//
// Removing a mount point unmounts it in all mount namespaces, and two containers of plain runc or podman run --rootfs can share a
// root. The last user of a root therefore removes the files: otherwise the end of one container would unbind the interceptor in
// another. The records are in the run directory, which a reboot empties. This package never touches a root itself; package mount
// removes the files.
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

// User is a slice with a container that runs on a root.
type User struct {
	Slice      string `json:"slice"`
	Generation uint64 `json:"generation"`
	// Dir is the slice's directory. The enforcer removes it with the slice, so a User without it has ended, even without a
	// poststop.
	Dir string `json:"dir"`
}

// Record is the locked record of one root.
type Record struct {
	Made  []mount.Place `json:"made,omitempty"`
	Users []User        `json:"users,omitempty"`
	Root  string        `json:"root,omitempty"` // last known path of the root

	file *os.File
}

// Lock locks the record of root in dir and creates it if absent. It waits for other hooks until ctx is done.
func Lock(ctx context.Context, dir string, root mount.FileID) (*Record, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("the hook's records: %w", err)
	}
	return lockFile(ctx, dir, root, os.O_CREATE)
}

// Find is like Lock, but returns fs.ErrNotExist if there is no record.
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
		// The last user may have removed the file between open and lock.
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

// flock polls the lock: a wait in the kernel cannot be cancelled.
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

// load decodes the file and drops the users without a slice. An invalid file counts as empty: at worst two empty files remain in
// a root.
func load(file *os.File) (*Record, error) {
	r := &Record{file: file}
	// Decode the first value only, since a killed Save may leave the end of the previous text.
	if err := json.NewDecoder(io.LimitReader(file, 1<<20)).Decode(r); err != nil {
		r.Made, r.Users, r.Root = nil, nil, ""
	}
	r.Users = slices.DeleteFunc(r.Users, func(u User) bool {
		_, err := os.Stat(u.Dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	return r, nil
}

// Of returns the root of the record, or a zero FileID if the name of the file is invalid.
func (r *Record) Of() (id mount.FileID) {
	if _, err := fmt.Sscanf(filepath.Base(r.file.Name()), "%x-%x.json", &id.Dev, &id.Inode); err != nil {
		return mount.FileID{}
	}
	return id
}

// Sweep calls remove with locked records that have no user, left by runtimes killed before poststop; remove empties and saves them.
// It checks up to maxRecords records, to bound the cost on a host with many containers, and skips those locked by other hooks.
func Sweep(dir string, maxRecords int, remove func(*Record) error) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range rand.Perm(len(names))[:min(maxRecords, len(names))] {
		file, err := os.OpenFile(names[i], os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // removed by its last user
		}
		here, err := os.Lstat(names[i])
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || err != nil || !same(file, here) {
			file.Close()
			continue
		}
		record, err := load(file)
		if err == nil && len(record.Users) == 0 {
			err = remove(record)
		}
		errs = append(errs, err, record.Close())
	}
	return errors.Join(errs...)
}

// AddUser adds a user and replaces one with the same id, which has ended.
func (r *Record) AddUser(u User) {
	r.RemoveUser(u.Slice)
	r.Users = append(r.Users, u)
}

// RemoveUser removes a user and returns it, or a User with Generation 0 if absent.
func (r *Record) RemoveUser(slice string) User {
	i := slices.IndexFunc(r.Users, func(u User) bool { return u.Slice == slice })
	if i < 0 {
		return User{}
	}
	u := r.Users[i]
	r.Users = slices.Delete(r.Users, i, i+1)
	return u
}

// Save writes the record and keeps it locked.
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

// Close unlocks the record, and removes it if it is empty.
func (r *Record) Close() error {
	var err error
	if len(r.Made) == 0 && len(r.Users) == 0 {
		err = os.Remove(r.file.Name())
	}
	return errors.Join(err, r.file.Close())
}
