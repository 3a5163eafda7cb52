// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/durable"
)

// stateSchema is the version of the state directory's file; 1 was a bbolt file of all that is in both now (upgrade.go).
const stateSchema = 2

// StateName is the state directory's file: a line that says the schema and the checksum of what follows, and a document as JSON.
// It is replaced by renaming, so it is there whole, as it was before a change or after it.
const StateName = "state.json"

const stateHeader = "gpuslice state %d crc32c %08x\n"

// maxState is more than a host full of pools needs by far; the file is read whole.
const maxState = 64 << 20

// errNewer says that a file is of a later version of gpuslice.
var errNewer = errors.New("it is of a newer version of gpuslice")

type document struct {
	Pools    map[string]Pool   `json:"pools"`
	Contexts map[string]uint64 `json:"contexts"`
}

func (d document) clone() document { return document{maps.Clone(d.Pools), maps.Clone(d.Contexts)} }

// state is the state directory's file and what is in it. Who has turn writes it.
type state struct {
	path string
	turn chan struct{}
	disk durable.Disk
	document
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (d document) encode() ([]byte, error) {
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return nil, err
	}
	text = append(text, '\n')
	return append(fmt.Appendf(nil, stateHeader, stateSchema, crc32.Checksum(text, castagnoli)), text...), nil
}

// decode returns an error that is errNewer if the data is of a later version.
func decode(data []byte) (d document, err error) {
	line, text, _ := strings.Cut(string(data), "\n")
	line += "\n"
	var schema, sum uint32
	if _, err := fmt.Sscanf(line, stateHeader, &schema, &sum); err != nil {
		return d, errors.New("it does not begin as a state of gpuslice")
	}
	switch {
	case schema > stateSchema:
		return d, fmt.Errorf("%w (schema %d, this one knows %d)", errNewer, schema, stateSchema)
	case schema != stateSchema || fmt.Sprintf(stateHeader, schema, sum) != line:
		return d, errors.New("its first line is damaged")
	case crc32.Checksum([]byte(text), castagnoli) != sum:
		return d, errors.New("it does not match its checksum")
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, err
	}
	return d, nil
}

// open reads the file, or makes it.
func (st *state) open(o Options) error {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return err
	}
	st.path, st.turn, st.disk = filepath.Join(o.StateDir, StateName), make(chan struct{}, 1), o.disk
	st.document = document{make(map[string]Pool), make(map[string]uint64)}
	data, err := readRegular(st.path)
	if errors.Is(err, os.ErrNotExist) {
		return st.change(func(*document) {})
	}
	if err != nil && !errors.Is(err, errUnusable) {
		return err
	}
	if err == nil {
		var read document
		if read, err = decode(data); err == nil {
			maps.Copy(st.Pools, read.Pools)
			maps.Copy(st.Contexts, read.Contexts)
			return nil
		}
	}
	if err := setAside(o, st.path, err); err != nil {
		return err
	}
	return st.change(func(*document) {})
}

// readRegular reads a file whole. NONBLOCK: opening a FIFO would wait for its other end.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
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
	case info.Size() > maxState:
		return nil, fmt.Errorf("%w: it has %d bytes, more than this file can have", errUnusable, info.Size())
	}
	return io.ReadAll(f)
}

// change changes the document and the file, or neither. If the file was replaced and that is not known to be on disk, the former one
// is put back; or, if the disk does not take that either, before anything else is written.
func (st *state) change(how func(*document)) error {
	st.turn <- struct{}{}
	defer func() { <-st.turn }()
	changed := st.clone()
	how(&changed)
	replaced, err := st.replace(changed)
	if err == nil {
		st.document = changed
	} else if replaced {
		_, _ = st.replace(st.document)
	}
	return err
}

// replace says whether the file was replaced.
func (st *state) replace(d document) (replaced bool, err error) {
	data, err := d.encode()
	if err != nil {
		return false, err
	}
	return st.disk.Replace(st.path, data)
}

// setAside renames a file that cannot be used, and says so.
func setAside(o Options, path string, fault error) error {
	kind := "damaged"
	if errors.Is(fault, errNewer) {
		kind = "newer"
	}
	base := fmt.Sprintf("%s.%s-%s", path, kind, time.Now().UTC().Format("20060102T150405Z"))
	// A link and not a rename: an earlier file that was set aside within this second must not be replaced.
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
		o.Log.Error("state file cannot be used: it was kept under another name and an empty one was made. Containers and pools that were in it are no longer "+
			"known: create the pools anew; what running containers ask for in addition is refused until they are started again",
			"file", path, "kept", aside, "err", fault)
		return nil
	}
	return fmt.Errorf("%s cannot be used (%w), and there are too many files named %s", path, fault, base)
}

func (s *Store) changeState(key string, how func(*document)) error {
	if err := s.begin(); err != nil {
		return err
	}
	err := s.mayWrite(key)
	if err == nil {
		err = s.state.change(how)
	}
	s.end(&s.stateErr, err)
	return err
}

// PutPool writes a pool, in place of one of the same name.
func (s *Store) PutPool(p Pool) error {
	if err := s.changeState("pools/"+p.Name, func(d *document) { d.Pools[p.Name] = p }); err != nil {
		return fmt.Errorf("store pool %s: %w", p.Name, err)
	}
	return nil
}

// DeletePool forgets a pool. It is not an error if there is none.
func (s *Store) DeletePool(name string) error {
	if err := s.changeState("pools/"+name, func(d *document) { delete(d.Pools, name) }); err != nil {
		return fmt.Errorf("delete pool %s from the store: %w", name, err)
	}
	return nil
}

// Pools returns all pools, ordered by name.
func (s *Store) Pools() []Pool {
	s.state.turn <- struct{}{}
	defer func() { <-s.state.turn }()
	return slices.SortedFunc(maps.Values(s.state.Pools), func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
}

// PutContext writes what a process's first context was learned to cost on devices of that model.
func (s *Store) PutContext(model string, bytes uint64) error {
	if err := s.changeState("contexts/"+model, func(d *document) { d.Contexts[model] = bytes }); err != nil {
		return fmt.Errorf("store the context's cost of %q: %w", model, err)
	}
	return nil
}

// Contexts returns the learned costs of a first context, by device model.
func (s *Store) Contexts() map[string]uint64 {
	s.state.turn <- struct{}{}
	defer func() { <-s.state.turn }()
	return maps.Clone(s.state.Contexts)
}
