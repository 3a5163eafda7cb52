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

// Each file is sealed: its first line has its kind, its schema and the CRC-32C of its key and the following lines.
const header = "gpuslice %s %d crc32c %08x\n"

var (
	// errUnusable means that a file is damaged, or newer.
	errUnusable = errors.New("unusable file")
	// errNewer means that a file is of a later version of gpuslice.
	errNewer = errors.New("written by a newer version of gpuslice")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func seal(kind, key string, schema int, text []byte) []byte {
	sum := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, text)
	return append(fmt.Appendf(nil, header, kind, schema, sum), text...)
}

// unseal returns the sealed text. Its errors wrap errUnusable, and errNewer if the schema is a later one.
func unseal(kind, key string, schema int, data []byte) ([]byte, error) {
	line, text, _ := bytes.Cut(data, []byte("\n"))
	var found int
	var sum uint32
	if _, err := fmt.Sscanf(string(line)+"\n", "gpuslice "+kind+" %d crc32c %x\n", &found, &sum); err != nil {
		return nil, fmt.Errorf("%w: no header of a gpuslice %s", errUnusable, kind)
	}
	if found > schema {
		return nil, fmt.Errorf("%w: %w (schema %d, this version reads %d)", errUnusable, errNewer, found, schema)
	}
	if !bytes.Equal(seal(kind, key, found, text), data) || found < 1 {
		return nil, fmt.Errorf("%w: wrong checksum", errUnusable)
	}
	if found < schema {
		return nil, fmt.Errorf("%w: unknown schema %d", errUnusable, found)
	}
	return text, nil
}

// readRegular reads a whole file. O_NONBLOCK: opening a FIFO would wait for its other end.
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
		return nil, fmt.Errorf("%w: %d bytes are too many", errUnusable, info.Size())
	}
	return io.ReadAll(f)
}

// setAside renames an unusable file to base with a suffix, and logs that.
func setAside(o Options, path, base string, fault error) error {
	kind := "damaged"
	if errors.Is(fault, errNewer) {
		kind = "newer"
	}
	base = fmt.Sprintf("%s.%s-%s", base, kind, time.Now().UTC().Format("20060102T150405Z"))
	// Use link(2), since rename(2) could replace a file that was renamed within the same second.
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
			return fmt.Errorf("%s is unusable (%w), and cannot be renamed: %w", path, fault, err)
		}
		o.Log.Error("renamed an unusable state file. Its container or pools are no longer known: create the pools again; "+
			"restart the container: its requests are refused until then",
			"file", path, "kept", aside, "err", fault)
		return nil
	}
	return fmt.Errorf("%s is unusable (%w), and there are too many files named %s: move them away", path, fault, base)
}
