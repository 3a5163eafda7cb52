// SPDX-License-Identifier: Apache-2.0

// Package conf edits the text of other programs' configuration files, TOML and JSON: it adds an entry, takes one
// out, and keeps every byte that is not its business (comments, order, indentation, unknown keys, numbers of 20 digits, line
// ends).
//
// It never trusts itself. The edited text is decoded by the real decoder, and must say what the old one said with the
// entry and nothing else; if it does not, the edit is refused and the text stays. So what it cannot
// edit (there are many ways to write one table in TOML) costs a sentence and no configuration.
package conf

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
)

// Format is how a file is written.
type Format interface {
	// Decode returns what the text says; numbers keep all their digits. The error names the line.
	Decode(text []byte) (map[string]any, error)
	// Add adds value, which is a [Table], a slice or what Decode returns, at path, where nothing is yet. Tables above it
	// that are not there are made.
	Add(text []byte, path []string, value any) ([]byte, error)
	// Remove takes out what is at path. Tables above it stay, unless the text only implied them.
	Remove(text []byte, path []string) ([]byte, error)
}

// The formats.
var (
	TOML Format = tomlFormat{}
	JSON Format = jsonFormat{}
)

// ErrCannotEdit is returned where the text is right, and written in a way that is not understood well enough.
var ErrCannotEdit = errors.New("it is written in a way that cannot be edited safely: edit it by hand")

// Table is a table whose keys are in order.
type Table []Pair

// Pair is a key of a table and its value.
type Pair struct {
	Key   string
	Value any
}

// NewTable returns a decoded table as a Table, in the order of its keys.
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

// plain returns value as a decoder returns it.
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

// Lookup returns what is at path.
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

// Tables returns the table at path, or an empty one if there is none or something else.
func Tables(decoded map[string]any, path ...string) map[string]any {
	at, _ := Lookup(decoded, path...)
	table, _ := at.(map[string]any)
	return table
}

// with returns decoded with value at path. Tables on the way are copied, so that decoded stays as it is.
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

// without returns decoded with nothing at path, nor any table above it that is empty then: a text that only implied
// such a table has none any more.
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

// Equal compares what decoders return. Unlike reflect.DeepEqual's, one NaN is like another, and nothing is like an empty list.
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

// checkAdded says whether edited says what text said, with value at path.
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

// checkRemoved says whether edited says what text said, without what was at path.
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

// newline returns how lines end in text.
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

// span is a place in a text.
type span struct{ start, end int }

// splice is text with what is at s replaced. It never writes into text.
func splice(text []byte, s span, by string) []byte {
	return slices.Concat(text[:s.start], []byte(by), text[s.end:])
}
