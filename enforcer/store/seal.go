// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Each file is sealed: its first line names its kind, its schema and the CRC-32C of its key and of the lines that follow.
const header = "gpuslice %s %d crc32c %08x\n"

var (
	// errUnusable says that a file is damaged, or newer.
	errUnusable = errors.New("it cannot be used")
	// errNewer says that a file is of a later version of gpuslice.
	errNewer = errors.New("it is of a newer version of gpuslice")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func seal(kind, key string, schema int, text []byte) []byte {
	sum := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, text)
	return append(fmt.Appendf(nil, header, kind, schema, sum), text...)
}

// unseal returns what was sealed, or an error that is errUnusable, and errNewer if the schema is a later one.
func unseal(kind, key string, schema int, data []byte) ([]byte, error) {
	line, text, _ := bytes.Cut(data, []byte("\n"))
	var found int
	var sum uint32
	if _, err := fmt.Sscanf(string(line)+"\n", "gpuslice "+kind+" %d crc32c %x\n", &found, &sum); err != nil {
		return nil, fmt.Errorf("%w: it does not begin as a %s of gpuslice", errUnusable, kind)
	}
	if found > schema {
		return nil, fmt.Errorf("%w: %w (schema %d, this one knows %d)", errUnusable, errNewer, found, schema)
	}
	if !bytes.Equal(seal(kind, key, found, text), data) || found < 1 {
		return nil, fmt.Errorf("%w: it does not match its checksum", errUnusable)
	}
	if found < schema {
		return nil, fmt.Errorf("%w: schema %d is of no version that this one follows", errUnusable, found)
	}
	return text, nil
}

// readRegular reads a file whole. NONBLOCK: opening a FIFO would wait for its other end.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file (%s): move it away", path, info.Mode().Type())
	case info.Size() > limit:
		return nil, fmt.Errorf("%w: it has %d bytes, more than this file can have", errUnusable, info.Size())
	}
	return io.ReadAll(f)
}

// setAside renames a file that cannot be used to base with a suffix, and reports it.
func setAside(o Options, path, base string, fault error) error {
	kind := "damaged"
	if errors.Is(fault, errNewer) {
		kind = "newer"
	}
	base = fmt.Sprintf("%s.%s-%s", base, kind, time.Now().UTC().Format("20060102T150405Z"))
	// A link and not a rename: it must not replace a file that was renamed within the same second.
	for n := 1; n < 1000; n++ {
		aside := base
		if n > 1 {
			aside = fmt.Sprintf("%s.%d", base, n)
		}
		err := o.disk.Link(path, aside)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(o.disk.Remove(path), o.disk.SyncDir(filepath.Dir(path)))
		}
		if err != nil {
			return fmt.Errorf("%s cannot be used (%w), nor be renamed: %w", path, fault, err)
		}
		o.Log.Error("a file of the state cannot be used and was renamed. The container or pools in it are no longer known: create the pools anew; "+
			"further requests of the container are refused until it is started again",
			"file", path, "kept", aside, "err", fault)
		return nil
	}
	return fmt.Errorf("%s cannot be used (%w), and there are too many files named %s", path, fault, base)
}
