// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

type span struct{ start, end int }

// find returns the position of the value of key in the JSON object text. A duplicate key is an error, also in other letter case:
// encoding/json in runc takes the last one in any case, so a second "hooks" would override the first.
func find(text []byte, key string) (value span, found bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return span{}, false, ErrNotObject
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return span{}, false, err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return span{}, false, err
		}
		if !strings.EqualFold(name.(string), key) {
			continue
		}
		if found || name != key {
			return span{}, false, fmt.Errorf("%q is there more than once, or in other letter case (%q)", key, name)
		}
		end := int(dec.InputOffset())
		value, found = span{end - len(raw), end}, true
	}
	return value, found, nil
}

// splice returns text with s replaced. It never modifies text.
func splice(text []byte, s span, by []byte) []byte {
	return bytes.Join([][]byte{text[:s.start], by, text[s.end:]}, nil)
}

// set replaces the value of a member, or adds it as the first member.
func set(object []byte, key string, value []byte) ([]byte, error) {
	at, found, err := find(object, key)
	if err != nil {
		return nil, err
	}
	if found {
		return splice(object, at, value), nil
	}
	open := bytes.IndexByte(object, '{') + 1
	member := append([]byte(`"`+key+`":`), value...)
	if rest := bytes.TrimLeft(object[open:], " \t\r\n"); rest[0] != '}' {
		member = append(member, ',')
	}
	return splice(object, span{open, open}, member), nil
}

// insert adds an element at the start or the end of an array. An empty text or null is an empty array.
func insert(array, element []byte, first bool) ([]byte, error) {
	var elements []json.RawMessage
	if len(array) > 0 {
		if err := json.Unmarshal(array, &elements); err != nil {
			return nil, fmt.Errorf("expected an array")
		}
	}
	if len(elements) == 0 {
		return bytes.Join([][]byte{{'['}, element, {']'}}, nil), nil
	}
	if first {
		open := bytes.IndexByte(array, '[') + 1
		return splice(array, span{open, open}, append(bytes.Clone(element), ',')), nil
	}
	end := bytes.LastIndexByte(array, ']')
	for bytes.IndexByte([]byte(" \t\r\n"), array[end-1]) >= 0 {
		end--
	}
	return splice(array, span{end, end}, append([]byte{','}, element...)), nil
}
