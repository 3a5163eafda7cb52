// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names are what an engine says of a container, for people: as it was when the container began. They come from whoever may start one, so
// they are no identity: two slices can have the same. Each is printable, and of MaxName bytes at most.
type Names struct {
	Name      string `json:"name,omitempty"`      // the container's
	Pod       string `json:"pod,omitempty"`       // its pod's
	Namespace string `json:"namespace,omitempty"` // the pod's
	Image     string `json:"image,omitempty"`     // as it was asked for
}

// MaxName is how many bytes one of Names has at most.
const MaxName = 256

// Path is the container's name with those of its pod and namespace before it, as far as they are known: namespace/pod/container.
func (n Names) Path() string {
	var parts []string
	for _, part := range []string{n.Namespace, n.Pod, n.Name} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/")
}

// Bounded are the names as they are accepted: what cannot be printed is escaped, and what is too long is cut.
func (n Names) Bounded() Names {
	for _, text := range n.all() {
		*text = bounded(*text)
	}
	return n
}

func bounded(text string) string {
	const gap = "…"
	escaped := Plain(text[:min(len(text), MaxName+utf8.UTFMax)]) // the rest would be cut in any case
	if len(escaped) <= MaxName {
		return escaped
	}
	return strings.ToValidUTF8(escaped[:MaxName-len(gap)], "") + gap
}

func (n *Names) all() []*string { return []*string{&n.Name, &n.Pod, &n.Namespace, &n.Image} }

func (n Names) checkNames() error {
	for _, text := range n.all() {
		if len(*text) > MaxName || Plain(*text) != *text {
			return Errorf(CodeBadRequest, "name %.64q is not one: up to %d bytes that can be printed are accepted", *text, MaxName)
		}
	}
	return nil
}

// Plain is a stranger's text with what a terminal would take for more than text escaped.
func Plain(text string) string {
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch broken := r == utf8.RuneError && size == 1; {
		case broken:
			b.WriteString(`\x` + strconv.FormatUint(0x100|uint64(text[i]), 16)[1:])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
