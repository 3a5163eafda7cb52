// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// span is a value's place in a text.
type span struct{ start, end int }

// find finds the value of the member key of the JSON object that text is. A key that is there twice is an
// error, and so is one in other letter case: encoding/json, with which runc reads the same text, takes the last
// of them whatever its case, so that a second "hooks" would undo the first.
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

// splice is text with what is at s replaced. It never writes into text.
func splice(text []byte, s span, by []byte) []byte {
	return bytes.Join([][]byte{text[:s.start], by, text[s.end:]}, nil)
}

// set replaces the value of a member, or adds the member as the object's first.
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

// insert adds an element to an array, as its first or as its last. Nothing, and null, are empty arrays.
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
