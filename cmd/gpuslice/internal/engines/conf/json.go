// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

type jsonFormat struct{}

const byteOrderMark = "\xef\xbb\xbf"

// Decode treats a text of only white space as an empty object, as dockerd does.
func (jsonFormat) Decode(text []byte) (map[string]any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not UTF-8")
	}
	bare := bytes.TrimPrefix(text, []byte(byteOrderMark))
	if len(bytes.TrimSpace(bare)) == 0 {
		return map[string]any{}, nil
	}
	var decoded map[string]any
	dec := json.NewDecoder(bytes.NewReader(bare))
	dec.UseNumber()
	err := dec.Decode(&decoded)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			return nil, fmt.Errorf("line %d: there is more after the object", lineOf(bare, dec.InputOffset()))
		}
		if decoded == nil {
			return nil, errors.New("line 1: null is there, an object is expected")
		}
		return decoded, nil
	}
	offset := dec.InputOffset()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		offset, err = int64(len(bare)), errors.New("the object has no end")
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		err = fmt.Errorf("%s is there, an object is expected", kind.Value)
	}
	return nil, fmt.Errorf("line %d: %w", lineOf(bare, offset), err)
}

// lineOf returns the line of an offset reported by a decoder. The offset may lie outside of the text: for an error in the first
// byte, that of TOML is -1.
func lineOf(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:max(0, min(int(offset), len(text)))], []byte{'\n'})
}

// object is the range of a JSON object with its braces, and those of its members, from key to value.
type object struct {
	place   span
	members []jsonMember
}

type jsonMember struct {
	key   string
	place span
	value span
}

// scanObject scans the object at the next brace. The decoder has accepted text.
func scanObject(text []byte, at int) object {
	dec := json.NewDecoder(bytes.NewReader(text[at:]))
	o := object{place: span{start: at + bytes.IndexByte(text[at:], '{')}}
	if _, err := dec.Token(); err != nil {
		return o
	}
	for dec.More() {
		from := at + int(dec.InputOffset())
		m := jsonMember{place: span{start: from + bytes.IndexByte(text[from:], '"')}}
		key, err := dec.Token()
		if err != nil {
			return o
		}
		m.key, _ = key.(string)
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return o
		}
		m.value.end = at + int(dec.InputOffset())
		m.value.start = m.value.end - len(raw)
		m.place.end = m.value.end
		o.members = append(o.members, m)
	}
	_, _ = dec.Token() // the brace
	o.place.end = at + int(dec.InputOffset())
	return o
}

// walkObjects returns the objects on the path, the outermost first; fewer if the path ends earlier. Duplicate keys, in any letter
// case, are an error: encoding/json, which dockerd uses, takes the last of them.
func walkObjects(text []byte, path []string) ([]object, error) {
	at := 0
	if bytes.HasPrefix(text, []byte(byteOrderMark)) {
		at = len(byteOrderMark)
	}
	var all []object
	for _, key := range path {
		o := scanObject(text, at)
		all = append(all, o)
		var found *jsonMember
		for i := range o.members {
			m := &o.members[i]
			if !strings.EqualFold(m.key, key) {
				continue
			}
			if found != nil || m.key != key {
				return nil, fmt.Errorf("line %d: %q is there more than once, or in other letter case (%q)", lineOf(text, int64(m.place.start)), key, m.key)
			}
			found = m
		}
		if found == nil || text[found.value.start] != '{' {
			break
		}
		at = found.value.start
	}
	return all, nil
}

func (f jsonFormat) Add(text []byte, path []string, value any) ([]byte, error) {
	decoded, err := f.Decode(text)
	if err != nil {
		return nil, err
	}
	eol := newline(text)
	base := text
	if len(bytes.TrimSpace(bytes.TrimPrefix(text, []byte(byteOrderMark)))) == 0 {
		base = []byte("{}" + eol)
	}
	objects, err := walkObjects(base, path)
	if err != nil {
		return nil, err
	}
	for i := range objects {
		at, there := Lookup(decoded, path[:i+1]...)
		if _, table := at.(map[string]any); there && (!table || i == len(path)-1) {
			return nil, fmt.Errorf("%q is there already, as something else", strings.Join(path[:i+1], "."))
		}
	}
	o := objects[len(objects)-1]
	rest := path[len(objects)-1:]
	nested := value
	for i := len(rest) - 1; i > 0; i-- {
		nested = Table{{rest[i], nested}}
	}
	w := jsonWriter{eol: eol, unit: indentUnit(base)}
	edited := w.insert(base, o, Pair{rest[0], nested}, len(objects) == 1)
	return edited, checkAdded(f, text, edited, path, value)
}

// indentUnit returns the indentation of the outermost object's members, by default four spaces.
func indentUnit(text []byte) string {
	o := scanObject(text, bytes.IndexByte(text, '{'))
	if len(o.members) > 0 {
		if indent, alone := indentAt(text, o.members[0].place.start); alone && indent != "" {
			return indent
		}
	}
	return "    "
}

// indentAt returns the indentation of the line up to at, and whether nothing else precedes at.
func indentAt(text []byte, at int) (string, bool) {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	rest := bytes.TrimLeft(line, " \t")
	return string(line[:len(line)-len(rest)]), len(rest) == 0 && len(line) < at
}

type jsonWriter struct{ eol, unit string }

// insert adds a member as the last of the object, in the object's style: on lines of its own, or on one line.
func (w jsonWriter) insert(text []byte, o object, p Pair, outermost bool) []byte {
	if len(o.members) == 0 {
		indent, _ := indentAt(text, o.place.start)
		if !outermost && !bytes.Contains(text, []byte{'\n'}) {
			return splice(text, o.place, "{"+w.member(p, "", false)+"}")
		}
		return splice(text, o.place, "{"+w.eol+indent+w.unit+w.member(p, indent+w.unit, true)+w.eol+indent+"}")
	}
	last := o.members[len(o.members)-1].place
	if indent, alone := indentAt(text, last.start); alone {
		return splice(text, span{last.end, last.end}, ","+w.eol+indent+w.member(p, indent, true))
	}
	return splice(text, span{last.end, last.end}, ", "+w.member(p, "", false))
}

// member formats a member. indent is the indentation of its line, if it may take several lines.
func (w jsonWriter) member(p Pair, indent string, lines bool) string {
	return jsonScalar(p.Key) + ": " + w.value(p.Value, indent, lines)
}

func (w jsonWriter) value(value any, indent string, lines bool) string {
	switch v := value.(type) {
	case Table:
		if len(v) == 0 {
			return "{}"
		}
		var parts []string
		for _, p := range v {
			parts = append(parts, w.member(p, indent+w.unit, lines))
		}
		if !lines {
			return "{" + strings.Join(parts, ", ") + "}"
		}
		between := w.eol + indent + w.unit
		return "{" + between + strings.Join(parts, ","+between) + w.eol + indent + "}"
	case []string:
		return w.value(plain(v), indent, lines)
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, w.value(e, indent, false))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return jsonScalar(value)
}

// jsonScalar formats a value without escaping <, > and &.
func jsonScalar(value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(value) != nil {
		return "null" // the verification fails then
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (f jsonFormat) Remove(text []byte, path []string) ([]byte, error) {
	decoded, err := f.Decode(text)
	if err != nil {
		return nil, err
	}
	if _, there := Lookup(decoded, path...); !there {
		return text, nil
	}
	objects, err := walkObjects(text, path)
	if err != nil {
		return nil, err
	}
	if len(objects) < len(path) {
		return nil, ErrCannotEdit
	}
	o := objects[len(path)-1]
	edited := text
	for i, m := range o.members {
		if m.key != path[len(path)-1] {
			continue
		}
		cut := m.place
		switch {
		case i > 0: // with the preceding comma
			cut.start = o.members[i-1].place.end
		case len(o.members) > 1:
			cut.end = o.members[1].place.start
		default:
			cut = span{o.place.start + 1, o.place.end - 1}
		}
		edited = splice(text, cut, "")
		break
	}
	return edited, checkRemoved(f, text, edited, path)
}
