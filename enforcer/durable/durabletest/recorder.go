// SPDX-License-Identifier: Apache-2.0

// Package durabletest records the order of operations on files, and injects errors into them.
package durabletest

import (
	"path/filepath"

	"github.com/gpuslice/gpuslice/enforcer/durable"
)

// Recorder is a disk that records each operation before running it: its name, and the base names of its files.
type Recorder struct {
	Done []string
	Fail func(operation string) error // returns an error to inject, or nil to run the operation
}

// Disk returns the host's operations, recorded.
func (r *Recorder) Disk() durable.Disk {
	host := durable.Host()
	two := func(name string, of func(from, to string) error) func(from, to string) error {
		return func(from, to string) error {
			return r.do(name+" "+filepath.Base(from)+" "+filepath.Base(to), func() error { return of(from, to) })
		}
	}
	one := func(name string, of func(path string) error) func(path string) error {
		return func(path string) error {
			return r.do(name+" "+filepath.Base(path), func() error { return of(path) })
		}
	}
	return durable.Disk{
		Create: func(path string) (f durable.File, err error) {
			err = r.do("create "+filepath.Base(path), func() error {
				f, err = host.Create(path)
				return err
			})
			return &file{f, r, filepath.Base(path)}, err
		},
		Rename: two("rename", host.Rename), Link: two("link", host.Link), Remove: one("remove", host.Remove), SyncDir: one("syncdir", host.SyncDir),
	}
}

// Take returns the operations since the last call.
func (r *Recorder) Take() []string {
	done := r.Done
	r.Done = nil
	return done
}

func (r *Recorder) do(operation string, carryOut func() error) error {
	r.Done = append(r.Done, operation)
	if r.Fail != nil {
		if err := r.Fail(operation); err != nil {
			return err
		}
	}
	return carryOut()
}

type file struct {
	durable.File
	r    *Recorder
	name string
}

func (f *file) Write(data []byte) (n int, err error) {
	err = f.r.do("write "+f.name, func() error {
		n, err = f.File.Write(data)
		return err
	})
	return n, err
}

func (f *file) Sync() error { return f.r.do("sync "+f.name, f.File.Sync) }

// Close closes the file even if an error is injected.
func (f *file) Close() error {
	closed := f.File.Close()
	return f.r.do("close "+f.name, func() error { return closed })
}
