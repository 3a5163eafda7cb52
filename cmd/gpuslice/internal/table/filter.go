// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Filter selects rows by a key.
type Filter[R any] struct {
	Key     string
	Matches func(r R, value string) bool
	Accepts []string // accepted values; nil: any
}

// Is returns a filter for rows with the value as text.
func Is[R any](key string, text func(R) string) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return text(r) == value }}
}

// OneOf is Is for texts with a few known values.
func OneOf[R any](key string, text func(R) string, accepts ...string) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return text(r) == value }, Accepts: accepts}
}

// If returns a filter for rows where holds returns true, or false.
func If[R any](key string, holds func(R) bool) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return holds(r) == (value == "true") }, Accepts: []string{"true", "false"}}
}

// FilterKeys returns the keys of Filters.
func (t *Table[R]) FilterKeys() []string {
	var keys []string
	for _, f := range t.Filters {
		keys = append(keys, f.Key)
	}
	return keys
}

// filter parses KEY=VALUE texts. A row has to match one of the values of each key.
func (t *Table[R]) filter(given []string) (keep func(R) bool, err error) {
	values := make(map[string][]string)
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		i := slices.IndexFunc(t.Filters, func(f Filter[R]) bool { return f.Key == key })
		if !ok || i < 0 {
			return nil, fmt.Errorf("--filter %q: KEY=VALUE is accepted, with the keys %s", text, and(t.FilterKeys()))
		}
		if f := t.Filters[i]; f.Accepts != nil && !slices.Contains(f.Accepts, value) {
			return nil, fmt.Errorf("--filter %q: of %s %s are accepted", text, key, and(f.Accepts))
		}
		values[key] = append(values[key], value)
	}
	return func(r R) bool {
		for _, f := range t.Filters {
			matches := func(value string) bool { return f.Matches(r, value) }
			if of := values[f.Key]; of != nil && !slices.ContainsFunc(of, matches) {
				return false
			}
		}
		return true
	}, nil
}

// Keep returns a function that selects rows by filters.
func (t *Table[R]) Keep(filters []string) (func(R) bool, error) { return t.filter(filters) }

// SortKeys returns the columns to sort by.
func (t *Table[R]) SortKeys() []string {
	var keys []string
	for _, c := range t.Columns {
		keys = append(keys, strings.ToLower(c.Field))
	}
	return keys
}

// order returns a function that compares rows, or nil to keep their order.
func (t *Table[R]) order(by string) (func(a, b R) int, error) {
	if by == "" {
		return nil, nil
	}
	key, down := strings.CutPrefix(by, "-")
	i := slices.IndexFunc(t.Columns, func(c Column[R]) bool { return strings.EqualFold(c.Field, key) })
	if i < 0 {
		return nil, fmt.Errorf("--sort %q: %s are accepted, with \"-\" before it for the largest first", by, and(t.SortKeys()))
	}
	c := t.Columns[i]
	compare := func(a, b R) int { return strings.Compare(c.Text(a), c.Text(b)) }
	if c.Number != nil {
		compare = func(a, b R) int { return cmp.Compare(c.Number(a), c.Number(b)) }
	}
	if down {
		return func(a, b R) int { return compare(b, a) }, nil
	}
	return compare, nil
}
