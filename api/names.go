// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names are the names that an engine gave a container at its start. They are for display only: every user with access to the
// engine can choose them, and two slices can have the same. Each is printable, and at most MaxName bytes long.
type Names struct {
	Name      string `json:"name,omitempty"`      // of the container
	Pod       string `json:"pod,omitempty"`       // of its pod
	Namespace string `json:"namespace,omitempty"` // of the pod
	Image     string `json:"image,omitempty"`     // as requested
}

// MaxName is the maximum length of each of Names, in bytes.
const MaxName = 256

// Path returns namespace/pod/container, without the parts that are unknown.
func (n Names) Path() string {
	var parts []string
	for _, part := range []string{n.Namespace, n.Pod, n.Name} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/")
}

// Bounded returns the names with unprintable characters escaped, cut to MaxName bytes.
func (n Names) Bounded() Names {
	for _, text := range n.all() {
		*text = BoundedText(*text)
	}
	return n
}

// BoundedText returns text with unprintable characters escaped, cut to MaxName bytes.
func BoundedText(text string) string {
	const gap = "…"
	escaped := Plain(text[:min(len(text), MaxName+utf8.UTFMax)]) // the rest would be cut off anyway
	if len(escaped) <= MaxName {
		return escaped
	}
	return strings.ToValidUTF8(escaped[:MaxName-len(gap)], "") + gap
}

func (n *Names) all() []*string { return []*string{&n.Name, &n.Pod, &n.Namespace, &n.Image} }

func (n Names) checkNames() error {
	for _, text := range n.all() {
		if len(*text) > MaxName || Plain(*text) != *text {
			return Errorf(CodeBadRequest, "name %.64q is not accepted: at most %d printable bytes are", *text, MaxName)
		}
	}
	return nil
}

// Plain returns text with unprintable characters and invalid UTF-8 escaped, so that it is safe to print on a terminal.
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
