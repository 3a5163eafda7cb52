// SPDX-License-Identifier: Apache-2.0

// Package docs checks documents against the source tree where no single package can.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const root = "../.."

var (
	named = regexp.MustCompile("`([^`]+)`")
	test  = regexp.MustCompile(`^(Test|Fuzz)\w+$`)
	which = regexp.MustCompile(`^(test/\S+) --only (\w+)$`)
)

// Each row of the last table of docs/evidence/security.md has a claim and its evidence: `TestX`, `TestY` in a directory, and
// more after semicolons. The named tests and files must exist.
func TestTheEvidenceOfTheSecurityPageExists(t *testing.T) {
	document := ""
	for _, page := range []string{"docs/operate/security.md", "docs/evidence/security.md"} {
		text := must.Get(os.ReadFile(filepath.Join(root, page)))(t)
		document += string(text)
	}
	_, section, found := strings.Cut(document, "\n## What shows it\n")
	must.True(t, found, "docs/evidence/security.md has no section \"What shows it\"")
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
		expect.True(t, shows != "", claim, "nothing shows it")
		for part := range strings.SplitSeq(shows, ";") {
			look(t, claim, part)
		}
	}
	expect.True(t, rows >= 50, "only", rows, "claims were found: is the table another?")
	// Each section of the pages needs a row, except those listed here.
	for _, heading := range regexp.MustCompile(`(?m)^###? (.+)$`).FindAllStringSubmatch(document, -1) {
		switch heading[1] {
		case "What cannot be stopped": // a summary of the next sections
			continue
		case "What shows it", "Reporting a vulnerability":
			continue
		}
		expect.True(t, slices.Contains(titles, heading[1]), "nothing is said of what shows the section", heading[1])
	}
	for _, title := range titles {
		expect.Contains(t, document, "# "+title+"\n", "there is no section", title)
	}
}

// Each leaf of docs/evidence/attack-trees.md names tests that exist, or says that there is none, or what does not hold.
func TestEachAttackLeafNamesItsDefence(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(root, "docs/evidence/attack-trees.md")))(t)
	lines := strings.Split(string(text), "\n")
	expect.True(t, len(lines) <= 121, "it has more than 120 lines:", len(lines)-1)
	leaves := 0
	for i, line := range lines[:len(lines)-1] {
		item := strings.TrimLeft(line, " ")
		if !strings.HasPrefix(item, "- ") || strings.HasPrefix(lines[i+1], strings.Repeat(" ", len(line)-len(item)+2)+"- ") {
			continue
		}
		leaves++
		switch {
		case strings.Contains(item, ": no test: "):
		case strings.Contains(item, ": not held: "):
			expect.Contains(t, item, ", see [", "where the limit is described")
		default:
			for part := range strings.SplitSeq(item, ";") {
				expect.True(t, look(t, item, part) != 0, part, "names no test")
			}
		}
	}
	expect.True(t, leaves >= 60, "found", leaves, "leaves, want at least 60")
}

// look checks one part of a cell: that its tests, case of a program, or file with its quoted text exist. It returns the number
// of named tests and files.
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
		expect.NoError(t, err, claim)
		for _, word := range words {
			expect.Contains(t, string(text), word, claim, file)
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
	files := must.Get(filepath.Glob(filepath.Join(root, dir, "*_test.go")))(t)
	var source strings.Builder
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		source.Write(text)
	}
	for _, name := range tests {
		expect.Contains(t, source.String(), "\nfunc "+name+"(", claim, "there is no", name, "in", dir)
	}
	return len(tests)
}
