// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Each row of a table names tests in one of its cells.
func TestEachRowNamesTestsThatExist(t *testing.T) {
	for _, table := range []struct {
		document, after, first string
		cells, tests, rows     int
	}{
		{"docs/operate/bounds.md", "\n## Of everything\n", "resource", 5, 4, 25},
		{"docs/evidence/promises.md", "\n", "promise", 2, 1, 25},
	} {
		text, err := os.ReadFile(filepath.Join(root, table.document))
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(text), table.after)
		rows := 0
		for line := range strings.Lines(section) {
			if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| "+table.first+" |") {
				continue
			}
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if len(cells) != table.cells {
				t.Errorf("%s: a row of %d cells: %s", table.document, len(cells), line)
				continue
			}
			rows++
			for part := range strings.SplitSeq(cells[table.tests], ";") {
				if look(t, cells[0], part) == 0 {
					t.Errorf("%s: %q: no test is named in %q", table.document, cells[0], part)
				}
			}
		}
		if rows < table.rows {
			t.Errorf("%s: found %d rows, want at least %d", table.document, rows, table.rows)
		}
	}
}

// An attached process costs a descriptor, and a limited user may have sessions full of them.
func TestOneUsersProcessesLeaveDescriptorsForOthers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "configs/gpusliced.service"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^LimitNOFILE=(\d+)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal("the unit has no LimitNOFILE")
	}
	limit, err := strconv.Atoi(string(line[1]))
	if err != nil {
		t.Fatal(err)
	}
	if each := config.DefaultMaxSessions * ledger.Slots; limit < 8*each {
		t.Errorf("the unit lets gpusliced have %d descriptors, of which one user can take %d", limit, each)
	}
}
