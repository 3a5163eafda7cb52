// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// bindName is the part of a slice's directory that its processes see.
const bindName = "bind"

func (e *Enforcer) slicesDir() string { return filepath.Join(e.options.RunDir, "slices") }

// newSliceDir returns a short path, since a socket's address has at most 108 bytes. It is never used again, so that nothing bound from a former slice's
// directory becomes valid again. It is also hard to guess: a slice's directory is known to its owner only.
func (e *Enforcer) newSliceDir(generation uint64) string {
	var name [6]byte
	_, _ = rand.Read(name[:]) // never fails
	return filepath.Join(e.slicesDir(), fmt.Sprintf("%x-%d", name, generation))
}

// makeDir makes a slice's directory with everything but the attach socket. Mkdir and O_EXCL follow no link and use no existing file.
//
// A container has the inner directory bound, and needs no access to the outer one. That is closed to the host's users: each could otherwise keep the
// attach socket busy; a session's processes on the host do pass it.
func (s *slice) makeDir() error {
	mode := os.FileMode(0o700)
	if s.request.OnHost() {
		mode = 0o711
	}
	err := makeSliceDir(s.dir, mode)
	if err == nil && s.request.Elastic {
		err = makeEmpty(filepath.Join(s.dir, bindName, api.ElasticName))
	}
	if err == nil && s.request.Session {
		err = makeEmpty(filepath.Join(s.dir, api.NoticeName))
	}
	return err
}

func makeSliceDir(dir string, mode os.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	bind := filepath.Join(dir, bindName)
	if err := os.Mkdir(bind, 0o755); err != nil {
		return err
	}
	// The hook binds the installed interceptor on it.
	return makeEmpty(filepath.Join(bind, api.LibraryName))
}

func makeEmpty(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// sweep removes directories without a slice, left by an enforcer that was killed before it stored the slice, or after it deleted the record.
func (e *Enforcer) sweep(keep map[string]bool) {
	entries, err := os.ReadDir(e.slicesDir())
	if err != nil {
		e.log.Error("slices' directories not listed", "err", err)
		return
	}
	for _, entry := range entries {
		if dir := filepath.Join(e.slicesDir(), entry.Name()); !keep[dir] {
			e.log.Info("removing the directory of no slice", "dir", dir)
			e.removeSliceDir(dir)
		}
	}
}

// removeSliceDir removes a slice's directory, and nothing else.
func (e *Enforcer) removeSliceDir(dir string) {
	if filepath.Dir(dir) != e.slicesDir() {
		e.log.Error("directory kept: it is not a slice's", "dir", dir)
		return
	}
	err := os.RemoveAll(dir)
	// If a container's init is killed while its hook runs, the hook may still add files.
	for tries := 0; tries < 10 && errors.Is(err, unix.ENOTEMPTY); tries++ {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		e.log.Error("slice's directory not removed", "dir", dir, "err", err)
	}
}

// lockState ensures that only one enforcer uses the state. The lock ends with the process.
func lockState(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state: %w", err)
	}
	if err := store.Lock(file); err != nil {
		holder := make([]byte, 20)
		n, _ := file.ReadAt(holder, 0)
		file.Close()
		if errors.Is(err, store.ErrLocked) {
			return nil, fmt.Errorf("another enforcer (pid %s) works on %s: stop it first, or give this one its own state directory",
				strings.TrimSpace(string(holder[:n])), dir)
		}
		return nil, err
	}
	if err := errors.Join(file.Truncate(0), writePID(file)); err != nil {
		file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return file, nil
}

func writePID(file *os.File) error {
	_, err := file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return err
}
