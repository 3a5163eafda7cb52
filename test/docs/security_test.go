// SPDX-License-Identifier: Apache-2.0

// Package docs holds documents to the tree that they speak of, where that is no one package's affair.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var (
	named = regexp.MustCompile("`([^`]+)`")
	test  = regexp.MustCompile(`^(Test|Fuzz)\w+$`)
	which = regexp.MustCompile(`^(test/\S+) --only (\w+)$`)
)

// Each row of the last table of docs/evidence/security.md says what is claimed, and what shows it: `TestX`, `TestY` in a directory, and
// after a semicolon others. What it names has to be there.
func TestWhatShowsThatTheSecurityPageIsTrueIsThere(t *testing.T) {
	document := ""
	for _, page := range []string{"docs/operate/security.md", "docs/evidence/security.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		document += string(text)
	}
	_, section, found := strings.Cut(document, "\n## What shows it\n")
	if !found {
		t.Fatal("docs/evidence/security.md has no section that says what shows it")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var titles []string
	rows := 0
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| claim |") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 {
			t.Errorf("a row of %d cells: %s", len(cells)-2, line)
			continue
		}
		claim, shows := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		if title, isTitle := strings.CutPrefix(claim, "**"); isTitle && shows == "" {
			titles = append(titles, strings.TrimSuffix(title, "**"))
			continue
		}
		rows++
		if shows == "" {
			t.Errorf("%q: nothing shows it", claim)
		}
		for part := range strings.SplitSeq(shows, ";") {
			look(t, claim, part)
		}
	}
	if rows < 50 {
		t.Errorf("only %d claims were found: is the table another?", rows)
	}
	// The table follows the pages: a section that makes no claim is named here.
	for _, heading := range regexp.MustCompile(`(?m)^###? (.+)$`).FindAllStringSubmatch(document, -1) {
		switch heading[1] {
		case "What cannot be stopped": // the short form of what comes after
			continue
		case "What shows it", "Reporting a vulnerability":
			continue
		}
		if !slices.Contains(titles, heading[1]) {
			t.Errorf("nothing is said of what shows the section %q", heading[1])
		}
	}
	for _, title := range titles {
		if !strings.Contains(document, "# "+title+"\n") {
			t.Errorf("there is no section %q", title)
		}
	}
}

// look whether what one part of a cell names is there: tests in a directory, a program's case, or a file, and what it is said to
// have. It returns how many tests and files are named.
func look(t *testing.T, claim, part string) int {
	t.Helper()
	var tests, words []string
	file := ""
	for _, name := range named.FindAllStringSubmatch(part, -1) {
		switch {
		case test.MatchString(name[1]):
			tests = append(tests, name[1])
		case which.MatchString(name[1]):
			program := which.FindStringSubmatch(name[1])
			file, words = program[1], append(words, `"`+program[2]+`": (`)
		case strings.Contains(name[1], "/"):
			file = name[1]
		default:
			words = append(words, name[1])
		}
	}
	if file != "" {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Errorf("%q: %v", claim, err)
		}
		for _, word := range words {
			if !strings.Contains(string(text), word) {
				t.Errorf("%q: %s has no %s", claim, file, word)
			}
		}
	}
	if len(tests) == 0 {
		return len(words)
	}
	_, dir, found := strings.Cut(part, "` in ")
	if dir = strings.TrimSpace(dir); !found || strings.ContainsAny(dir, " `") {
		t.Errorf("%q: in which directory is %s?", claim, strings.TrimSpace(part))
		return len(tests)
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, name := range tests {
		if !strings.Contains(source.String(), "\nfunc "+name+"(") {
			t.Errorf("%q: there is no %s in %s", claim, name, dir)
		}
	}
	return len(tests)
}
