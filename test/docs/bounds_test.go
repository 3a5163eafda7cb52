// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/test/doctable"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	bounds     = "docs/operate/bounds.md"
	boundTests = "docs/evidence/bounds.md" // the same with the tests, in the last column
)

var (
	update      = flag.Bool("update", false, "write the table of "+bounds)
	lastColumn  = regexp.MustCompile(`(?m)\|[^|\n]*\|$`)
	placeholder = regexp.MustCompile(`\{([\w/]+\.[\w.]+)(:b)?\}`)
)

// noBound lists numeric constants that bound nothing that others can spend, by what they are.
var noBound = map[string]string{
	"how often and how long the daemons do their own work": `api/server.drainTimeout daemon/audit.closeTimeout lease/service.drainTimeout lease/service.interval lease/service.askTimeout
		lease/service.endTimeout lease/service.exitGrace enforcer.elasticPace enforcer/members.termQuiet enforcer/members.minKillInterval
		enforcer/members.maxKillInterval enforcer/members.firstExit enforcer/members.killTimeout enforcer.drainPace
		enforcer.stuck enforcer.slow enforcer.missedChecks enforcer.DefaultGrace
		enforcer.maxSleep enforcer/mover.claimPace enforcer/cgroup.retryInterval enforcer/checkpoint.lockTimeout enforcer/native.timeout
		enforcer/recovery.timeoutPerProcess enforcer/recovery.yieldAfter enforcer/store.lockPatience enforcer/truth.Agreeing`,
	"sizes that are estimated or rounded": `lease/service.pipeBytes api/server.headerSlop lease/service.contextBytes enforcer.DefaultContextBytes enforcer/native.rounding
		enforcer/mover.slowest enforcer/mover.residue enforcer/mover.spare enforcer/mover.leftShare enforcer/mover.plentyShare`,
	"with which the state machine plans": `enforcer/core.quickly enforcer/core.slowest enforcer/core.moveTime
		enforcer/core.stayMargin enforcer/core.returnRetryDelay enforcer/core.restedAfter enforcer/core.maxQueue`,
	"how many are named in a message": `enforcer.named enforcer/admission/refusal.named`,
	"formats, states and descriptors": `lease/service.tokenBytes daemon/config.maxSocket enforcer/checkpoint.Running enforcer/checkpoint.Locked
		enforcer/checkpoint.Checkpointed enforcer/checkpoint.Failed enforcer/checkpoint.ResultNotReady
		enforcer/checkpoint.ResultNotSupported enforcer/checkpoint.lockFD enforcer/ledger.futexWake
		enforcer/ledger.futex2Word enforcer/ledger.waitedWords enforcer/process.Unreadable enforcer/process.wakeKey
		enforcer/store.recordSchema enforcer/store.stateSchema enforcer/unixsocket.PassRights`,
	"a shortcut of an algorithm": `enforcer/event.few`,
}

// The page has the values of the code. `go test ./test/docs -run TestBoundsMatchTheCode -update` writes it from testdata/bounds.md.
func TestBoundsMatchTheCode(t *testing.T) {
	rows := must.Get(os.ReadFile("testdata/bounds.md"))(t)
	code, used := must.Get(load())(t), make(map[string]bool)
	table := placeholder.ReplaceAllStringFunc(string(rows), func(in string) string {
		match := placeholder.FindStringSubmatch(in)
		used[match[1]] = true
		v, err := valueOf(code, match[1])
		if err != nil {
			t.Error(err)
			return in
		}
		return text(v, match[2] != "")
	})
	expect.True(t, !strings.ContainsAny(table, "{}"), "a placeholder is left")
	for page, table := range map[string]string{bounds: lastColumn.ReplaceAllString(table, "|"), boundTests: table} {
		if *update {
			must.Do(t, doctable.Write(filepath.Join(root, page), table))
		}
		if got, err := doctable.Read(filepath.Join(root, page)); err != nil || got != table {
			t.Errorf("%s is not what the code says (%v): run this test with -update", page, err)
		}
	}
	exempt := make(map[string]bool)
	for what, names := range noBound {
		for name := range strings.FieldsSeq(names) {
			if exempt[name] = true; used[name] {
				t.Errorf("%s is in a row, but also among %q", name, what)
			}
		}
	}
	bounded := regexp.MustCompile(`^(api/server|lease/service|enforcer|daemon)(/|$)`)
	for dir, p := range code {
		if !bounded.MatchString(dir) {
			continue
		}
		for _, name := range limits(p) {
			name = dir + "." + name
			if _, err := valueOf(code, name); err != nil { // not a number
				continue
			}
			if !used[name] && !exempt[name] {
				t.Errorf("%s is in no row of testdata/bounds.md: if it is a limit, add it, else name it in noBound", name)
			}
			delete(exempt, name)
		}
	}
	for name := range exempt {
		t.Errorf("%s is in noBound, but no constant", name)
	}
}

// Each row of a table names tests in one of its cells.
func TestEachRowNamesTestsThatExist(t *testing.T) {
	for _, table := range []struct {
		document, after, first string
		cells, tests, rows     int
	}{
		{boundTests, "\n", "resource", 6, 5, 40},
		{"docs/evidence/promises.md", "\n", "promise", 2, 1, 25},
	} {
		text := must.Get(os.ReadFile(filepath.Join(root, table.document)))(t)
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
				if table.document == boundTests && strings.TrimSpace(cells[table.tests]) == "no test" {
					continue
				}
				if look(t, cells[0], part) == 0 {
					t.Errorf("%s: %q: no test is named in %q", table.document, cells[0], part)
				}
			}
		}
		expect.True(t, rows >= table.rows, table.document, "found", rows, "rows, want at least", table.rows)
	}
}

// An attached process costs a descriptor, and a limited user may have sessions full of them.
func TestOneUsersProcessesLeaveDescriptorsForOthers(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(root, "configs/gpusliced.service")))(t)
	line := regexp.MustCompile(`(?m)^LimitNOFILE=(\d+)$`).FindSubmatch(text)
	must.True(t, line != nil, "the unit has no LimitNOFILE")
	limit := must.Get(strconv.Atoi(string(line[1])))(t)
	if each := config.DefaultMaxSessions * ledger.Slots; limit < 8*each {
		t.Errorf("the unit lets gpusliced have %d descriptors, of which one user can take %d", limit, each)
	}
}

// The unit must allow what docs/operate/bounds.md promises to concurrent clients.
func TestLeaseServiceUnitAllowsItsBounds(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(root, "configs/gpuslice-leased.service")))(t)
	value := func(key string) string {
		t.Helper()
		line := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
		must.True(t, line != nil, "the unit has no", key)
		return string(line[1])
	}
	families := strings.Fields(value("RestrictAddressFamilies"))
	for _, family := range []string{"AF_UNIX", "AF_INET", "AF_INET6"} {
		expect.True(t, slices.Contains(families, family), "the unit refuses", family, "no other machine could be served")
	}
	for _, key := range []string{"PrivateNetwork", "IPAddressDeny"} {
		expect.True(t, !regexp.MustCompile(`(?m)^`+key+`=`).Match(text), "with", key, "no other machine is served")
	}
	limit := must.Get(strconv.Atoi(value("LimitNOFILE")))(t)
	const local, handshakes, remote = 1024, 256, 256
	if needed := 3*config.Default().Leases.MaxLeases + local + handshakes + 2*remote; limit < 8*needed {
		t.Errorf("the unit lets gpuslice-leased have %d descriptors, but its clients can take %d by default", limit, needed)
	}
	// Each connection from another machine buffers 1 MiB in each direction.
	expect.Equal(t, value("MemoryMax"), "1G", "what other machines can have wait, in MiB:", 2*remote)
}
