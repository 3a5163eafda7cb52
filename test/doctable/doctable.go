// SPDX-License-Identifier: Apache-2.0

// Package doctable reads and writes the table that a test keeps in a document, between the lines begin and end. It never changes the rest of the
// document, nor a document without them.
package doctable

import (
	"fmt"
	"os"
	"strings"
)

const (
	begin = "<!-- the suite writes from here -->\n"
	end   = "<!-- to here -->\n"
)

// Read returns what a document has between the lines.
func Read(document string) (string, error) {
	_, table, _, err := parts(document)
	return table, err
}

// Write replaces the text between the lines by table, which ends with a newline.
func Write(document, table string) error {
	before, _, after, err := parts(document)
	if err != nil {
		return err
	}
	return os.WriteFile(document, []byte(before+begin+table+end+after), 0o644)
}

func parts(document string) (before, table, after string, err error) {
	text, err := os.ReadFile(document)
	if err != nil {
		return "", "", "", err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	table, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return "", "", "", fmt.Errorf("%s has no lines %q and %q", document, begin, end)
	}
	return before, table, after, nil
}
