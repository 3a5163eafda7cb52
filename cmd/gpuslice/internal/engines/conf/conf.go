// SPDX-License-Identifier: Apache-2.0

// Package conf edits configuration files of other programs, TOML and JSON. It adds or removes an entry, and keeps every other
// byte: comments, order, indentation, unknown keys, numbers of 20 digits, line ends.
//
// Each edit is verified with the real decoder: it has to change nothing but the entry, or is rejected. So a form that the package
// cannot edit (TOML has many for a table) costs an error and never a configuration.
package conf

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
)

// Format is a file format.
type Format interface {
	// Decode decodes text; numbers keep all their digits. The error names the line.
	Decode(text []byte) (map[string]any, error)
	// Add adds value at path, where nothing exists yet, and creates missing tables above it. value is a [Table], a slice, or a
	// value of Decode.
	Add(text []byte, path []string, value any) ([]byte, error)
	// Remove removes the value at path. Tables above it stay, unless the text only implied them.
	Remove(text []byte, path []string) ([]byte, error)
}

// Supported formats.
var (
	TOML Format = tomlFormat{}
	JSON Format = jsonFormat{}
)

// ErrCannotEdit is returned for a valid text in a form that cannot be edited safely.
var ErrCannotEdit = errors.New("it is written in a way that cannot be edited safely: edit it by hand")

// Table is a table with ordered keys.
type Table []Pair

// Pair is a key of a table and its value.
type Pair struct {
	Key   string
	Value any
}

// NewTable returns a decoded table as a Table, sorted by key.
func NewTable(decoded map[string]any) Table {
	var t Table
	for _, key := range slices.Sorted(maps.Keys(decoded)) {
		t = append(t, Pair{key, ordered(decoded[key])})
	}
	return t
}

func ordered(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return NewTable(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = ordered(v[i])
		}
		return list
	case []map[string]any: // how BurntSushi/toml decodes an array of tables
		list := make([]any, len(v))
		for i := range v {
			list[i] = NewTable(v[i])
		}
		return list
	}
	return value
}

// plain returns value in the form that a decoder returns.
func plain(value any) any {
	switch v := value.(type) {
	case Table:
		m := make(map[string]any, len(v))
		for _, p := range v {
			m[p.Key] = plain(p.Value)
		}
		return m
	case []string:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return list
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	}
	return value
}

// Lookup returns the value at path.
func Lookup(decoded map[string]any, path ...string) (any, bool) {
	var at any = decoded
	for _, key := range path {
		table, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = table[key]; !ok {
			return nil, false
		}
	}
	return at, true
}

// Tables returns the table at path, or an empty one if there is none.
func Tables(decoded map[string]any, path ...string) map[string]any {
	at, _ := Lookup(decoded, path...)
	table, _ := at.(map[string]any)
	return table
}

// with returns a copy of decoded with value at path. It copies the tables on the path, so decoded stays unchanged.
func with(decoded map[string]any, path []string, value any) (map[string]any, error) {
	copied := maps.Clone(decoded)
	if copied == nil {
		copied = make(map[string]any)
	}
	if len(path) == 1 {
		copied[path[0]] = value
		return copied, nil
	}
	below, ok := copied[path[0]].(map[string]any)
	if _, there := copied[path[0]]; there && !ok {
		return nil, notATable(path[0])
	}
	below, err := with(below, path[1:], value)
	copied[path[0]] = below
	return copied, err
}

type notATable string

func (key notATable) Error() string { return string(key) + " is not a table" }

// without returns a copy of decoded without the value at path and the tables above that are empty then, since a text that only
// implied such a table loses it.
func without(decoded map[string]any, path []string) map[string]any {
	copied := maps.Clone(decoded)
	if len(path) == 1 {
		delete(copied, path[0])
		return copied
	}
	if below, ok := copied[path[0]].(map[string]any); ok {
		if below = without(below, path[1:]); len(below) == 0 {
			delete(copied, path[0])
		} else {
			copied[path[0]] = below
		}
	}
	return copied
}

// Equal compares decoded values. Unlike for reflect.DeepEqual, NaNs are equal, and nil equals an empty list.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, Equal)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	}
	la, okA := list(a)
	lb, okB := list(b)
	if okA || okB {
		return okA && okB && slices.EqualFunc(la, lb, Equal)
	}
	return reflect.DeepEqual(a, b)
}

func list(value any) ([]any, bool) {
	switch v := value.(type) {
	case []any:
		return v, true
	case []map[string]any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = v[i]
		}
		return all, true
	}
	return nil, false
}

// checkAdded returns an error unless edited decodes to the content of text with value at path.
func checkAdded(f Format, text, edited []byte, path []string, value any) error {
	before, err := f.Decode(text)
	if err != nil {
		return err
	}
	want, err := with(before, path, plain(value))
	if err != nil {
		return err
	}
	if got, err := f.Decode(edited); err != nil || !Equal(got, want) {
		return ErrCannotEdit
	}
	return nil
}

// checkRemoved returns an error unless edited decodes to the content of text without the value at path.
func checkRemoved(f Format, text, edited []byte, path []string) error {
	before, err := f.Decode(text)
	if err != nil {
		return err
	}
	got, err := f.Decode(edited)
	if err != nil || !Equal(without(got, path), without(before, path)) {
		return ErrCannotEdit
	}
	if _, there := Lookup(got, path...); there {
		return ErrCannotEdit
	}
	return nil
}

func newline(text []byte) string {
	for i, c := range text {
		if c == '\n' {
			if i > 0 && text[i-1] == '\r' {
				return "\r\n"
			}
			break
		}
	}
	return "\n"
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}

type span struct{ start, end int }

// splice returns text with s replaced. It never modifies text.
func splice(text []byte, s span, by string) []byte {
	return slices.Concat(text[:s.start], []byte(by), text[s.end:])
}
