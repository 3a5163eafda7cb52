// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"strings"

	"github.com/BurntSushi/toml"
)

// item is a header, or a key with its value, with the range of its lines.
type item struct {
	header bool     // [key]
	array  bool     // [[key]]
	key    []string // full path, including the table's
	lines  span     // from the start of the first line to the end of the last
	value  span     // of the key's value
}

// scanner scans a text that a TOML decoder has accepted, so it does not check for errors. It never passes the end of any text.
type scanner struct {
	text []byte
	at   int
}

func scanTOML(text []byte) []item {
	s := &scanner{text: text}
	s.skip("\xef\xbb\xbf")
	var items []item
	var table []string
	for s.at < len(s.text) {
		start := s.at
		s.spaces()
		switch s.peek() {
		case '#', '\r', '\n', 0:
			s.line()
			continue
		case '[':
			it := item{header: true}
			s.at++
			if it.array = s.skip("["); it.array {
				it.header = false
			}
			it.key = s.key()
			table = it.key
			s.line()
			it.lines = span{start, s.at}
			items = append(items, it)
			continue
		}
		it := item{key: append(append([]string(nil), table...), s.key()...)}
		s.skip("=")
		s.spaces()
		it.value.start = s.at
		s.value("#\r\n")
		it.value.end = s.at
		s.line()
		it.lines = span{start, s.at}
		items = append(items, it)
		if s.at == start {
			return items // not valid TOML
		}
	}
	return items
}

type member struct {
	key   []string
	place span // from the key to the end of the value
	value span
}

// scanInline returns the members of the inline table at place, which includes the braces.
func scanInline(text []byte, place span) []member {
	s := &scanner{text: text[:place.end-1], at: place.start + 1}
	var members []member
	for {
		s.blank()
		if s.at >= len(s.text) {
			return members
		}
		m := member{place: span{start: s.at}}
		m.key = s.key()
		s.skip("=")
		s.blank()
		m.value.start = s.at
		s.value(",#\r\n")
		m.value.end, m.place.end = s.at, s.at
		members = append(members, m)
		s.blank()
		if !s.skip(",") {
			return members
		}
	}
}

func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *scanner) skip(what string) bool {
	if !bytes.HasPrefix(s.text[s.at:], []byte(what)) {
		return false
	}
	s.at += len(what)
	return true
}

func (s *scanner) spaces() {
	for s.peek() == ' ' || s.peek() == '\t' {
		s.at++
	}
}

// blank skips spaces, line ends and comments.
func (s *scanner) blank() {
	for {
		switch s.peek() {
		case ' ', '\t', '\r', '\n':
			s.at++
		case '#':
			s.line()
		default:
			return
		}
	}
}

func (s *scanner) line() {
	if i := bytes.IndexByte(s.text[s.at:], '\n'); i >= 0 {
		s.at += i + 1
	} else {
		s.at = len(s.text)
	}
}

// key skips a dotted key and its separator, and returns its parts.
func (s *scanner) key() []string {
	var key []string
	for {
		s.spaces()
		start := s.at
		if c := s.peek(); c == '"' || c == '\'' {
			s.quoted()
			key = append(key, unquote(s.text[start:s.at]))
		} else {
			for s.at < len(s.text) && !strings.ContainsRune(" \t\r\n.=]", rune(s.peek())) {
				s.at++
			}
			key = append(key, string(s.text[start:s.at]))
		}
		s.spaces()
		if !s.skip(".") {
			return key
		}
	}
}

// quoted skips a string of any of the four kinds.
func (s *scanner) quoted() {
	quote := string(s.text[s.at])
	if s.skip(strings.Repeat(quote, 3)) {
		for s.at < len(s.text) && !s.skip(strings.Repeat(quote, 3)) {
			s.char(quote)
		}
		for i := 0; i < 2 && s.skip(quote); i++ { // up to two quotes before the closing ones belong to the string
		}
		return
	}
	s.at++
	for s.at < len(s.text) && !s.skip(quote) {
		s.char(quote)
	}
}

func (s *scanner) char(quote string) {
	if s.at++; quote == `"` && s.text[s.at-1] == '\\' && s.at < len(s.text) {
		s.at++
	}
}

// value skips a value. A bare value ends before any character of end.
func (s *scanner) value(end string) {
	switch s.peek() {
	case '"', '\'':
		s.quoted()
	case '[', '{':
		s.brackets()
	default:
		start := s.at
		for s.at < len(s.text) && strings.IndexByte(end, s.peek()) < 0 {
			s.at++
		}
		s.at = start + len(bytes.TrimRight(s.text[start:s.at], " \t"))
	}
}

func (s *scanner) brackets() {
	for depth := 0; s.at < len(s.text); {
		switch s.peek() {
		case '"', '\'':
			s.quoted()
			continue
		case '#':
			s.line()
			continue
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if s.at++; depth == 0 {
			return
		}
	}
}

func unquote(quoted []byte) string {
	var k struct{ K string }
	if _, err := toml.Decode("K = "+string(quoted), &k); err != nil {
		return string(quoted)
	}
	return k.K
}
