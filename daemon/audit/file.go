// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// file is the audit file. Rotated files have a number appended; the highest is the newest. By time, the newest file would be
// deleted first after a clock was set back. Rotation is a single rename, so each entry is in exactly one file at all times.
//
// If another program rotates or moves the file, a new one is begun before the next entry.
type file struct {
	options      Options
	open         *os.File  // nil if not open
	size         int64     // bytes
	firstEntry   time.Time // time of the first entry
	nextRotation time.Time // time of the next attempt to rotate; zero if the last one succeeded
}

// write appends an entry's line with the time at: all of it, or nothing.
func (f *file) write(line []byte, at time.Time) error {
	if err := f.ready(); err != nil {
		return err
	}
	if f.size > 0 && (f.size+int64(len(line)) > f.options.MaxSize || f.old()) {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.size == 0 {
		f.firstEntry = at
	}
	n, err := f.open.Write(line)
	if err == nil {
		f.size += int64(n)
		return nil
	}
	if n > 0 { // remove the partial line
		if cut := f.open.Truncate(f.size); cut != nil {
			err = errors.Join(err, cut)
		}
	}
	f.close()
	return err
}

// ready ensures that the open file is the one at the path, and updates its size.
func (f *file) ready() error {
	if f.isCurrent() {
		return nil
	}
	return f.begin()
}

// isCurrent reports whether the open file is still the one at the path, and updates its size, as it may have been truncated. It
// closes a file that was moved or deleted.
func (f *file) isCurrent() bool {
	if f.open == nil {
		return false
	}
	var named, mine syscall.Stat_t
	if syscall.Stat(f.options.File, &named) != nil || syscall.Fstat(int(f.open.Fd()), &mine) != nil ||
		named.Ino != mine.Ino || named.Dev != mine.Dev {
		f.close()
		return false
	}
	f.size = mine.Size
	return true
}

func (f *file) begin() error {
	// NONBLOCK: opening a FIFO would wait for its other end. NOFOLLOW: a user with write access to the directory must not
	// redirect the log to another file.
	const how = os.O_WRONLY | os.O_APPEND | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	open, err := os.OpenFile(f.options.File, how|os.O_CREATE|os.O_EXCL, 0o640)
	if err == nil {
		if f.options.GID > 0 {
			err = open.Chown(-1, f.options.GID)
		}
		err = errors.Join(err, open.Chmod(0o640)) // independent of the umask
		if err != nil {
			open.Close()
			return errors.Join(err, os.Remove(f.options.File))
		}
		f.open, f.size = open, 0
		return nil
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if open, err = os.OpenFile(f.options.File, how, 0); err != nil {
		return err
	}
	info, err := open.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%s): move it away", f.options.File, info.Mode().Type())
	}
	if err != nil {
		open.Close()
		return err
	}
	f.open, f.size, f.firstEntry = open, info.Size(), firstTime(f.options.File, info.ModTime())
	if err := f.endLine(); err != nil {
		f.close()
		return err
	}
	return nil
}

// endLine removes a partial last line, left by the death of the enforcer or the machine.
func (f *file) endLine() error {
	if f.size == 0 {
		return nil
	}
	read, err := os.Open(f.options.File)
	if err != nil {
		return err
	}
	defer read.Close()
	last := make([]byte, 1)
	if _, err := read.ReadAt(last, f.size-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	n, err := f.open.Write([]byte("\n"))
	f.size += int64(n)
	return err
}

// firstTime returns the time of the file's first entry, or otherwise if that cannot be read.
func firstTime(path string, otherwise time.Time) time.Time {
	read, err := os.Open(path)
	if err != nil {
		return otherwise
	}
	defer read.Close()
	lines := bufio.NewScanner(read)
	var first struct{ Time time.Time }
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &first) != nil || first.Time.IsZero() {
		return otherwise
	}
	return first.Time
}

func (f *file) old() bool {
	return f.options.MaxAge > 0 && f.options.Now().Sub(f.firstEntry) >= f.options.MaxAge
}

// check rotates an old file, and closes a moved one, without a new entry.
func (f *file) check() {
	if f.isCurrent() && f.size > 0 && f.old() {
		_ = f.rotate() // the next write reports the error
	}
}

// rotate renames the file to the next number and begins another. A file that cannot be renamed is kept, and grows: some operators
// make the directory or the file append-only to protect their evidence.
func (f *file) rotate() error {
	now := f.options.Now()
	if now.Before(f.nextRotation) {
		return nil
	}
	numbers, err := f.rotated()
	if err == nil {
		next := 1
		if n := len(numbers); n > 0 {
			next = numbers[n-1] + 1
		}
		numbers = append(numbers, next)
		err = os.Rename(f.options.File, f.numbered(next))
	}
	if err != nil {
		if f.nextRotation.IsZero() {
			f.options.Log.Error("the audit file cannot be rotated, so it grows", "file", f.options.File, "err", err)
		}
		f.nextRotation = now.Add(f.options.Retry)
		return nil
	}
	f.nextRotation = time.Time{}
	f.close()
	for len(numbers) > f.options.Keep {
		if err := os.Remove(f.numbered(numbers[0])); err != nil {
			f.options.Log.Warn("an old audit file cannot be removed", "err", err)
		}
		numbers = numbers[1:]
	}
	return f.begin()
}

// numbered returns the name of a rotated file, with enough digits for shells to sort the names.
func (f *file) numbered(n int) string { return fmt.Sprintf("%s.%06d", f.options.File, n) }

// rotated returns the numbers of the rotated files, the oldest first.
func (f *file) rotated() ([]int, error) {
	entries, err := os.ReadDir(filepath.Dir(f.options.File))
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), filepath.Base(f.options.File)+".")
		if n, err := strconv.Atoi(text); ok && err == nil && n > 0 && e.Name() == filepath.Base(f.numbered(n)) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (f *file) close() {
	if f.open != nil {
		f.open.Close()
		f.open = nil
	}
}
