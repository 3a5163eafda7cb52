// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/config"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Each row of the last table of docs/operate/bounds.md says in its last cell what uses the resource up.
func TestWhatShowsThatTheBoundsHoldIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/operate/bounds.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Of everything\n")
	if !found {
		t.Fatal("docs/operate/bounds.md has no section of everything")
	}
	rows := 0
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| resource |") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 {
			t.Errorf("a row of %d cells: %s", len(cells)-2, line)
			continue
		}
		rows++
		for part := range strings.SplitSeq(cells[5], ";") {
			if look(t, cells[1], part) == 0 {
				t.Errorf("%q: no test is named in %q", cells[1], part)
			}
		}
	}
	if rows < 25 {
		t.Errorf("only %d resources were found: is the table another?", rows)
	}
}

// An attached process costs a descriptor, and a user with a limit may have sessions full of them.
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
