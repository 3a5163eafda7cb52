// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Filter is a key by which rows can be chosen.
type Filter[R any] struct {
	Key     string
	Matches func(r R, value string) bool
	Accepts []string // the only values that there are; nil: any
}

// Is is a filter of rows whose text is the value.
func Is[R any](key string, text func(R) string) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return text(r) == value }}
}

// OneOf is Is of texts that are some few.
func OneOf[R any](key string, text func(R) string, accepts ...string) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return text(r) == value }, Accepts: accepts}
}

// If is a filter of rows for which something holds (true), or does not (false).
func If[R any](key string, holds func(R) bool) Filter[R] {
	return Filter[R]{Key: key, Matches: func(r R, value string) bool { return holds(r) == (value == "true") }, Accepts: []string{"true", "false"}}
}

// FilterKeys are the keys of Filters.
func (t *Table[R]) FilterKeys() []string {
	var keys []string
	for _, f := range t.Filters {
		keys = append(keys, f.Key)
	}
	return keys
}

// filter reads KEY=VALUE. Of one key any value may hold, and of several keys all must.
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

// Keep returns which rows such filters choose.
func (t *Table[R]) Keep(filters []string) (func(R) bool, error) { return t.filter(filters) }

// SortKeys are the columns by which rows can be sorted.
func (t *Table[R]) SortKeys() []string {
	var keys []string
	for _, c := range t.Columns {
		keys = append(keys, strings.ToLower(c.Field))
	}
	return keys
}

// order compares rows; nil leaves them as they are.
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
