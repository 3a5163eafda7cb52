// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/gpuslice/gpuslice/api"
)

// Watcher reads the enforcer's state periodically. It sends the requests of a Read over one connection, and decodes only those
// parts of the answers that have changed. It is safe for concurrent use.
type Watcher struct {
	client *Client

	mu      sync.Mutex // guards the fields below
	raw     bytes.Buffer
	slices  list[api.Slice]
	devices list[api.Device]
	details map[string]*decoded[api.Slice] // by id
	version uint64
}

// Snapshot is the state at one time. It is read-only: later ones may share its values.
type Snapshot struct {
	Slices  []api.Slice          // without their processes
	Devices []api.Device         // nil if the caller may not see them
	Details map[string]api.Slice // by id: the requested slices that exist, with their processes
	Version uint64               // never 0; changes with any other field
}

// Watch returns a Watcher. It does no I/O.
func (c *Client) Watch() *Watcher {
	return &Watcher{client: c, details: make(map[string]*decoded[api.Slice])}
}

// Read returns the current state, with the processes of the slices ids.
func (w *Watcher) Read(ctx context.Context, ids ...string) (Snapshot, error) {
	paths := []string{"/v1/slices", "/v1/devices"}
	for _, id := range ids {
		if err := api.CheckID(id); err != nil {
			return Snapshot{}, err
		}
		paths = append(paths, "/v1/slices/"+id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	answers, err := w.client.getAll(ctx, paths, &w.raw)
	if err != nil {
		return Snapshot{}, err
	}
	if err := w.slices.take(answers[0], &w.version); err != nil {
		return Snapshot{}, fmt.Errorf("the enforcer's list of slices: %w", err)
	}
	switch err := w.devices.take(answers[1], &w.version); {
	case errors.Is(err, api.ErrForbidden):
		if w.devices.all != nil {
			w.version++
		}
		w.devices = list[api.Device]{}
	case err != nil:
		return Snapshot{}, fmt.Errorf("the enforcer's list of devices: %w", err)
	}
	s := Snapshot{Slices: w.slices.all, Devices: w.devices.all, Details: make(map[string]api.Slice, len(ids))}
	was := w.details
	w.details = make(map[string]*decoded[api.Slice], len(ids))
	for i, id := range ids {
		answer := answers[2+i]
		one := was[id]
		if one == nil || one.text != string(answer.body) {
			one, err = decode[api.Slice](answer)
			if errors.Is(err, api.ErrNotFound) { // it has ended since
				continue
			}
			if err != nil {
				return Snapshot{}, fmt.Errorf("the enforcer's answer about slice %s: %w", id, err)
			}
			w.version++
		}
		w.details[id], s.Details[id] = one, one.value
	}
	if len(was) != len(w.details) {
		w.version++
	}
	s.Version = w.version
	return s, nil
}

// decoded is a decoded value and its text.
type decoded[T any] struct {
	text  string
	value T
}

func decode[T any](a answer) (*decoded[T], error) {
	if a.status/100 != 2 {
		return nil, refusal(a.status, a.body)
	}
	t := &decoded[T]{text: string(a.body)}
	return t, json.Unmarshal(a.body, &t.value)
}

// list is a decoded list; by has its elements by text.
type list[T any] struct {
	text []byte
	all  []T
	by   map[string]*decoded[T]
}

// take decodes a new answer, and increments version if the answer has changed.
func (l *list[T]) take(a answer, version *uint64) error {
	if a.status/100 != 2 {
		return refusal(a.status, a.body)
	}
	if l.by != nil && bytes.Equal(l.text, a.body) {
		return nil
	}
	texts, err := elements(a.body)
	if err != nil {
		return err
	}
	all, by := make([]T, 0, len(texts)), make(map[string]*decoded[T], len(texts))
	for _, text := range texts {
		one := l.by[string(text)]
		if one == nil {
			if one, err = decode[T](answer{a.status, text}); err != nil {
				return err
			}
		}
		by[one.text] = one
		all = append(all, one.value)
	}
	l.text, l.all, l.by = append(l.text[:0], a.body...), all, by
	*version++
	return nil
}

var errNoList = errors.New("it is no list")

const space = " \t\r\n"

// elements returns the elements of a JSON array as texts. It does not check them: if each element decodes as JSON, the array is
// valid.
func elements(array []byte) (all [][]byte, err error) {
	array = bytes.Trim(array, space)
	if len(array) < 2 || array[0] != '[' || array[len(array)-1] != ']' {
		return nil, errNoList
	}
	array = array[1 : len(array)-1]
	if len(bytes.Trim(array, space)) == 0 {
		return nil, nil
	}
	depth, begin, quoted := 0, 0, false
	for i := 0; i < len(array); i++ {
		switch c := array[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 0:
			all = append(all, array[begin:i])
			begin = i + 1
		}
	}
	return append(all, array[begin:]), nil
}
