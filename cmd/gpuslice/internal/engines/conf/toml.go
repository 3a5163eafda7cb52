// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

type tomlFormat struct{}

func (tomlFormat) Decode(text []byte) (map[string]any, error) {
	decoded := make(map[string]any)
	_, err := toml.Decode(string(text), &decoded)
	var syntax toml.ParseError
	if errors.As(err, &syntax) {
		why := syntax.Message
		if why == "" { // errors of this kind have only a text
			_, why, _ = strings.Cut(syntax.Error(), ": ")
			if _, after, found := strings.Cut(why, "): "); found {
				why = after
			}
		}
		// The decoder reports the next line for an error at a line's end.
		return nil, fmt.Errorf("line %d: %s", lineOf(text, int64(syntax.Position.Start)), why)
	}
	return decoded, err
}

// Add appends the entry under a header of its own, which TOML allows anywhere, unless a table above it is an inline table: then
// the entry becomes a member of that.
func (f tomlFormat) Add(text []byte, path []string, value any) ([]byte, error) {
	decoded, err := f.Decode(text)
	if err != nil {
		return nil, err
	}
	for i := range path {
		at, there := Lookup(decoded, path[:i+1]...)
		if !there {
			break
		}
		if _, table := at.(map[string]any); !table || i == len(path)-1 {
			return nil, fmt.Errorf("%s is there already, as something else", joinKey(path[:i+1]))
		}
	}
	edited, inline := addInline(text, path, value)
	if !inline {
		edited = appendTable(text, path, value)
	}
	return edited, checkAdded(f, text, edited, path, value)
}

// addInline adds value to the deepest inline table on the path, if any.
func addInline(text []byte, path []string, value any) ([]byte, bool) {
	place, depth := findInline(text, path)
	if depth == 0 {
		return nil, false
	}
	members := scanInline(text, place)
	rest := path[depth:]
	// Use nested tables, as the older decoder of containerd does not know dotted keys in inline tables. If a dotted key defines a
	// table on the path, only another dotted key can add to it.
	var what string
	if slices.ContainsFunc(members, func(m member) bool { return m.key[0] == rest[0] }) {
		what = joinKey(rest) + " = " + tomlValue(value)
	} else {
		for i := len(rest) - 1; i > 0; i-- {
			value = Table{{rest[i], value}}
		}
		what = joinKey(rest[:1]) + " = " + tomlValue(value)
	}
	if len(members) == 0 {
		return splice(text, span{place.start + 1, place.end - 1}, " "+what+" "), true
	}
	last := members[len(members)-1].place.end
	return splice(text, span{last, last}, ", "+what), true
}

// findInline returns the range of the deepest inline table on the path, and the length of its own path; 0 if there is none.
func findInline(text []byte, path []string) (place span, depth int) {
	for _, it := range scanTOML(text) {
		if it.header || it.array || len(it.key) >= len(path) || !hasPrefix(path, it.key) || text[it.value.start] != '{' {
			continue
		}
		place, depth = it.value, len(it.key)
		for {
			members := scanInline(text, place)
			i := slices.IndexFunc(members, func(m member) bool {
				return len(m.key) < len(path)-depth && hasPrefix(path[depth:], m.key) && text[m.value.start] == '{'
			})
			if i < 0 {
				return place, depth
			}
			place = members[i].value
			depth += len(members[i].key)
		}
	}
	return span{}, 0
}

func appendTable(text []byte, path []string, value any) []byte {
	eol := newline(text)
	var b bytes.Buffer
	b.Write(text)
	if len(text) > 0 {
		if text[len(text)-1] != '\n' {
			b.WriteString(eol)
		}
		b.WriteString(eol)
	}
	table, ok := value.(Table)
	if !ok { // a key of the table above it
		if edited, there := insertKey(text, path, value); there {
			return edited
		}
		path, table = path[:len(path)-1], Table{{path[len(path)-1], value}}
	}
	writeTable(&b, path, table, "", eol)
	return b.Bytes()
}

func insertKey(text []byte, path []string, value any) (edited []byte, there bool) {
	above := path[:len(path)-1]
	for _, it := range scanTOML(text) {
		if it.header && !it.array && slices.Equal(it.key, above) {
			end := span{it.lines.end, it.lines.end}
			line := "  " + joinKey(path[len(path)-1:]) + " = " + tomlValue(value) + newline(text)
			if text[end.start-1] != '\n' {
				line = newline(text) + line
			}
			return splice(text, end, line), true
		}
	}
	return nil, false
}

// writeTable writes a header, its keys, and then its subtables.
func writeTable(b *bytes.Buffer, path []string, table Table, indent, eol string) {
	fmt.Fprintf(b, "%s[%s]%s", indent, joinKey(path), eol)
	var tables Table
	for _, p := range table {
		if _, ok := p.Value.(Table); ok {
			tables = append(tables, p)
			continue
		}
		fmt.Fprintf(b, "%s  %s = %s%s", indent, joinKey([]string{p.Key}), tomlValue(p.Value), eol)
	}
	for _, p := range tables {
		writeTable(b, append(slices.Clone(path), p.Key), p.Value.(Table), indent+"  ", eol)
	}
}

func tomlValue(value any) string {
	switch v := value.(type) {
	case Table:
		var parts []string
		for _, p := range v {
			parts = append(parts, joinKey([]string{p.Key})+" = "+tomlValue(p.Value))
		}
		if len(parts) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	case []string:
		return tomlValue(plain(v))
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, tomlValue(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	// All other values came from the decoder, so its encoder can write them; otherwise the verification fails.
	text, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.TrimPrefix(string(text), "v = "))
}

// joinKey formats a dotted key, with quotes where needed.
func joinKey(path []string) string {
	const bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	parts := make([]string, len(path))
	for i, key := range path {
		if parts[i] = key; key == "" || strings.Trim(key, bare) != "" {
			parts[i] = tomlValue(key)
		}
	}
	return strings.Join(parts, ".")
}

func (f tomlFormat) Remove(text []byte, path []string) ([]byte, error) {
	decoded, err := f.Decode(text)
	if err != nil {
		return nil, err
	}
	if _, there := Lookup(decoded, path...); !there {
		return text, nil
	}
	edited := removeInline(removeLines(text, path), path)
	return edited, checkRemoved(f, text, edited, path)
}

// removeLines removes the lines of headers and keys at path and below. It removes comments between them, but not after the last,
// as these may belong to the next entry.
func removeLines(text []byte, path []string) []byte {
	items := scanTOML(text)
	var cut []span
	inside := false // in a table to be removed
	for _, it := range items {
		goes := hasPrefix(it.key, path)
		if goes && inside && !it.header && !it.array {
			cut[len(cut)-1].end = it.lines.end
		} else if goes {
			cut = append(cut, it.lines)
		}
		if it.header || it.array {
			inside = goes
		}
	}
	edited := text
	for _, s := range slices.Backward(cut) {
		// Also remove the empty line before the table.
		if s.start >= 2 && edited[s.start-1] == '\n' {
			line := bytes.TrimRight(edited[:s.start-1], " \t\r")
			if len(line) > 0 && line[len(line)-1] == '\n' && (s.end == len(edited) || edited[s.end] == '\n' || edited[s.end] == '\r') {
				s.start = len(line)
			}
		}
		edited = splice(edited, s, "")
	}
	return edited
}

func removeInline(text []byte, path []string) []byte {
	for {
		place, depth := findInline(text, path)
		if depth == 0 {
			return text
		}
		members := scanInline(text, place)
		i := slices.IndexFunc(members, func(m member) bool { return hasPrefix(m.key, path[depth:]) })
		if i < 0 {
			return text
		}
		cut := members[i].place
		switch {
		case i > 0: // with the preceding comma
			cut.start = members[i-1].place.end
		case len(members) > 1:
			cut.end = members[1].place.start
		default:
			cut = span{place.start + 1, place.end - 1}
		}
		text = splice(text, cut, "")
	}
}
