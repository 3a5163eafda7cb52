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

// file is the audit file. A rotated one has the same name and a number behind it, which grows: the highest is the newest.
// A number and not a time, so that a clock that was set back does not make the newest file the first to be deleted. One
// rename is all that a rotation is, so there is no moment at which an entry is in no file or in two.
//
// Another program may rotate it too, or move it away: that is seen, and a new file begun, before the next entry.
type file struct {
	options Options
	open    *os.File  // nil: not yet, or not any more
	size    int64     // bytes
	begun   time.Time // of the first entry
	again   time.Time // when a rotation that failed is tried again; zero if none did
}

// write appends an entry's line, which is of that time: all of it, or nothing.
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
		f.begun = at
	}
	n, err := f.open.Write(line)
	if err == nil {
		f.size += int64(n)
		return nil
	}
	if n > 0 { // half a line is none
		if cut := f.open.Truncate(f.size); cut != nil {
			err = errors.Join(err, cut)
		}
	}
	f.close()
	return err
}

// ready makes sure that the open file is the one that has the name, and knows its size.
func (f *file) ready() error {
	if f.still() {
		return nil
	}
	return f.begin()
}

// still says whether a file is open that still has the name, and learns its size: it may have been emptied. One that was moved
// away or deleted is closed.
func (f *file) still() bool {
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

// begin opens the file, or makes it.
func (f *file) begin() error {
	// NONBLOCK: opening a FIFO would wait for its other end. NOFOLLOW: a user who may write in the directory must not
	// choose another file to be written to.
	const how = os.O_WRONLY | os.O_APPEND | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	open, err := os.OpenFile(f.options.File, how|os.O_CREATE|os.O_EXCL, 0o640)
	if err == nil {
		if f.options.GID > 0 {
			err = open.Chown(-1, f.options.GID)
		}
		err = errors.Join(err, open.Chmod(0o640)) // whatever the umask is
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
	f.open, f.size, f.begun = open, info.Size(), firstTime(f.options.File, info.ModTime())
	if err := f.endLine(); err != nil {
		f.close()
		return err
	}
	return nil
}

// endLine makes sure that the file ends with a whole line: the enforcer, or the machine, may have died within one.
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

// firstTime is the time of the file's first entry; otherwise if that cannot be read.
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
	return f.options.MaxAge > 0 && f.options.Now().Sub(f.begun) >= f.options.MaxAge
}

// check is for a file that nothing is written to: it is rotated too when it is old, and let go of when it was moved away.
func (f *file) check() {
	if f.still() && f.size > 0 && f.old() {
		_ = f.rotate() // what becomes of the next entry is said with that
	}
}

// rotate gives the file its number and begins another. If it cannot be renamed it is kept, and grows: a directory, or a
// file, that may not be changed but appended to is how some protect their evidence.
func (f *file) rotate() error {
	now := f.options.Now()
	if now.Before(f.again) {
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
		if f.again.IsZero() {
			f.options.Log.Error("the audit file cannot be rotated, and grows", "file", f.options.File, "err", err)
		}
		f.again = now.Add(f.options.Retry)
		return nil
	}
	f.again = time.Time{}
	f.close()
	for len(numbers) > f.options.Keep {
		if err := os.Remove(f.numbered(numbers[0])); err != nil {
			f.options.Log.Warn("an old audit file stays", "err", err)
		}
		numbers = numbers[1:]
	}
	return f.begin()
}

// numbered is the name of a rotated file; as many digits as let a shell list them in their order.
func (f *file) numbered(n int) string { return fmt.Sprintf("%s.%06d", f.options.File, n) }

// rotated are the numbers of the rotated files, the oldest first.
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
