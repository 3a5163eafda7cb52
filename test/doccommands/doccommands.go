// SPDX-License-Identifier: Apache-2.0

// Package doccommands reads the documented commands, each in a fence that starts with the place where it runs:
//
//	```console bare       test/e2e, on a host without systemd
//	```console cluster    kubernetes/test, in a cluster of one node
//	```console engines    test/engines, by each engine that it names
//	```console host       test/e2e, on a host of the simulated driver
//	```console playground test/e2e, beside `make playground`
//	```console newcomer   test/newcomer.sh, on a Debian and an Ubuntu of its own
//	```console unrun: WHY no test runs it
//
// test/newcomer.sh also types the blocks "engines" and "host" of README.md, docs/use, and engines.md and install.md of docs/operate. A
// line with the prefix "$ ", or "# " for root, is a command; its output follows.
package doccommands

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Marks are the words allowed after "console".
var Marks = []string{"bare", "cluster", "engines", "host", "newcomer", "playground", "unrun"}

// Block is one fence, or a command outside of one.
type Block struct {
	File     string // below the project's root
	Line     int    // of the fence
	Mark     string // "" is an error
	Why      string // reason for "unrun"
	Commands []Command
}

// Command is a typed command, without "sudo" and any trailing remark.
type Command struct {
	Text    string
	Printed []string // lines
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// Read returns the fences of README.md and docs.
func Read(root string) ([]Block, error) {
	files := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var all []Block
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		all = append(all, parse(file, string(text))...)
	}
	return all, nil
}

var remark = regexp.MustCompile(`\s{2,}#.*$`)

func parse(file, text string) (all []Block) {
	var b *Block
	number, inside := 0, false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		words := strings.Fields(info)
		switch {
		case fence && !inside && len(words) > 0 && words[0] == "console":
			mark, why, _ := strings.Cut(strings.Join(words[1:], " "), ": ")
			all = append(all, Block{File: file, Line: number, Mark: mark, Why: why})
			b, inside = &all[len(all)-1], true
		case fence:
			b, inside = nil, !inside
		case b == nil && strings.HasPrefix(strings.TrimSpace(line), "$ "): // a command outside a fence has no mark
			all = append(all, Block{File: file, Line: number, Commands: []Command{{Text: strings.TrimSpace(line)[2:]}}})
		case b == nil:
		case strings.HasPrefix(line, "$ "), strings.HasPrefix(line, "# "):
			command := strings.TrimSpace(remark.ReplaceAllString(line[2:], ""))
			b.Commands = append(b.Commands, Command{Text: strings.TrimPrefix(command, "sudo ")})
		case len(b.Commands) > 0:
			c := &b.Commands[len(b.Commands)-1]
			c.Printed = append(c.Printed, line)
		}
	}
	return all
}

// varying matches a word that may change between runs: it has a digit.
var varying = regexp.MustCompile(`[0-9]`)

// Session is one run of a block. Its zero value is ready to use.
type Session struct{ actual map[string]string }

// Words returns a command's words. A documented word that varied in earlier output is replaced by the actual one.
func (s *Session) Words(c Command) []string {
	words := strings.Fields(c.Text)
	for i, word := range words {
		if actual, ok := s.actual[word]; ok {
			words[i] = actual
		}
	}
	return words
}

// Compare returns an error if the documented and the actual output differ in more than blanks and words with a digit.
func (s *Session) Compare(c Command, said string) error {
	if s.actual == nil {
		s.actual = map[string]string{}
	}
	printed, here := strings.Fields(strings.Join(c.Printed, " ")), strings.Fields(said)
	differ := len(printed) != len(here)
	for i := 0; i < len(printed) && !differ; i++ {
		differ = printed[i] != here[i] && (!varying.MatchString(printed[i]) || !varying.MatchString(here[i]))
		s.actual[printed[i]] = here[i]
	}
	if differ {
		return fmt.Errorf("%s: the document has\n\t%s\nand here it printed\n\t%s", c.Text, strings.Join(printed, " "), strings.Join(here, " "))
	}
	return nil
}
