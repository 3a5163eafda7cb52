// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuslice/gpuslice/enforcer/durable"
)

// stateSchema is the version of the state directory's file. Version 1 was a database.
const stateSchema = 2

// StateName is the state directory's file, a sealed JSON document. It is replaced by rename(2), so a reader finds the document before a
// change or after it.
const (
	StateName = "state.json"
	stateKind = "state"
)

// maxState is far more than a host full of pools needs, in bytes. The file is read whole.
const maxState = 64 << 20

type document struct {
	Pools    map[string]Pool   `json:"pools"`
	Contexts map[string]uint64 `json:"contexts"`
}

func (d document) clone() document { return document{maps.Clone(d.Pools), maps.Clone(d.Contexts)} }

// state is the state directory's file and its contents. The owner of turn writes it.
type state struct {
	path string
	turn chan struct{}
	disk durable.Disk
	document
}

func (d document) encode() ([]byte, error) {
	text, err := json.MarshalIndent(d, "", " ")
	return seal(stateKind, "", stateSchema, append(text, '\n')), err
}

// decode decodes a document. Its errors wrap errNewer for data of a later version.
func decode(data []byte) (d document, err error) {
	text, err := unseal(stateKind, "", stateSchema, data)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%w: %w", errUnusable, err)
	}
	return d, nil
}

// open reads the file, or creates it.
func (st *state) open(o Options) error {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return err
	}
	st.path, st.turn, st.disk = filepath.Join(o.StateDir, StateName), make(chan struct{}, 1), o.disk
	st.document = document{make(map[string]Pool), make(map[string]uint64)}
	data, err := readRegular(st.path, maxState)
	if errors.Is(err, os.ErrNotExist) {
		return st.change(func(*document) {})
	}
	var read document
	if err == nil {
		read, err = decode(data)
	}
	if errors.Is(err, errUnusable) {
		if err := setAside(o, st.path, st.path, err); err != nil {
			return err
		}
		return st.change(func(*document) {})
	}
	maps.Copy(st.Pools, read.Pools)
	maps.Copy(st.Contexts, read.Contexts)
	return err
}

// change changes both the document and the file, or neither. If the file was replaced but not synced, it puts the former one back. If that
// fails as well, the next write replaces it.
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

// replace writes the file, and reports whether it was replaced.
func (st *state) replace(d document) (replaced bool, err error) {
	data, err := d.encode()
	if err != nil {
		return false, err
	}
	return st.disk.Replace(st.path, data)
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

// PutPool writes a pool, and replaces one of the same name.
func (s *Store) PutPool(p Pool) error {
	if err := s.changeState("pools/"+p.Name, func(d *document) { d.Pools[p.Name] = p }); err != nil {
		return fmt.Errorf("cannot store pool %s: %w", p.Name, err)
	}
	return nil
}

// DeletePool deletes a pool. It succeeds if there is none.
func (s *Store) DeletePool(name string) error {
	if err := s.changeState("pools/"+name, func(d *document) { delete(d.Pools, name) }); err != nil {
		return fmt.Errorf("cannot delete pool %s from the store: %w", name, err)
	}
	return nil
}

// Pools returns all pools, ordered by name.
func (s *Store) Pools() []Pool {
	s.state.turn <- struct{}{}
	defer func() { <-s.state.turn }()
	return slices.SortedFunc(maps.Values(s.state.Pools), func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
}

// PutContext writes the measured bytes of a process's first context on devices of a model.
func (s *Store) PutContext(model string, bytes uint64) error {
	if err := s.changeState("contexts/"+model, func(d *document) { d.Contexts[model] = bytes }); err != nil {
		return fmt.Errorf("cannot store the cost of a context on %q: %w", model, err)
	}
	return nil
}

// Contexts returns the measured bytes of a first context, by device model.
func (s *Store) Contexts() map[string]uint64 {
	s.state.turn <- struct{}{}
	defer func() { <-s.state.turn }()
	return maps.Clone(s.state.Contexts)
}
