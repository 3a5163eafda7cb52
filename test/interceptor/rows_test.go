// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// The same program runs on a real card; see programs/rows.c.
func TestEveryRowOfTheTable(t *testing.T) {
	for _, vram := range []string{"2G", "4G"} {
		t.Run(vram, func(t *testing.T) {
			out, err := inSlice(t, environment(t), vram, compile(t, "rows"), "all")
			for line := range strings.Lines(out) {
				if !strings.HasPrefix(line, "PASS ") && !strings.HasSuffix(line, " failed\n") {
					t.Error(strings.TrimSpace(line))
				}
			}
			expect.NoError(t, err)
			expect.True(t, strings.Count("\n"+out, "\nPASS ") >= 80, "fewer than 80 rows passed:\n"+out)
		})
	}
}

// With several devices the interceptor must determine a stream's device.
func TestARecordingWithSeveralDevices(t *testing.T) {
	for _, way := range []string{"within", "beyond"} {
		out := must.Output(inSlice(t, environment(t, "FAKECUDA_DEVICES=2"), "4G", compile(t, "rows"), "graph-captured", way))(t)
		expect.Contains(t, out, "PASS graph-captured "+way)
	}
}

func rowsOf(t *testing.T, program string) map[string][]string {
	t.Helper()
	c := exec.Command(program, "list")
	c.Env = environment(t)
	out := must.Get(c.Output())(t)
	rows := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, calls, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if _, twice := rows[name]; !ok || twice {
			t.Fatalf("%q: a name of its own, a tab and functions are expected", line)
		}
		rows[name] = strings.Fields(calls)
	}
	return rows
}

// groupsOf returns the groups of hooks in docs/evidence/coverage.md, with the functions of each.
func groupsOf(t *testing.T) map[string][]string {
	t.Helper()
	document := must.Get(os.ReadFile("../../docs/evidence/coverage.md"))(t)
	groups := map[string][]string{}
	group := ""
	for line := range strings.Lines(string(document)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			if group = strings.TrimSpace(title); strings.HasPrefix(group, "Passed: ") {
				group = ""
			}
		}
		cells := strings.Split(line, "|")
		if group == "" || len(cells) < 2 || !strings.Contains(cells[1], "`") {
			continue
		}
		first := ""
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			if strings.HasPrefix(name[1], "_") {
				groups[group] = append(groups[group], first+name[1])
			} else {
				first = name[1]
				groups[group] = append(groups[group], first)
			}
		}
	}
	must.True(t, len(groups) >= 10, "docs/evidence/coverage.md has only the groups", groups)
	return groups
}

func TestEveryHookIsCalledByARow(t *testing.T) {
	program := compile(t, "rows")
	called, families := map[string]bool{}, map[string]bool{}
	for _, calls := range rowsOf(t, program) {
		for _, name := range calls {
			called[name], families[stem(name)] = true, true
		}
	}
	all := theTable(t)
	driver := exported(t, "fakecuda/libcuda.so.1")
	for name := range all["hook"] {
		if slices.Contains(driver, name) && !called[name] && !families[stem(name)] {
			t.Errorf("%s is called by no row, and no other version of it", name)
		}
	}
	for group, names := range groupsOf(t) {
		expect.True(t, slices.ContainsFunc(names, func(name string) bool { return called[name] }), group, "no row calls any of", names)
	}

	// A row's functions must be imported or looked up by name.
	if other := program + ".aarch64"; exists(other) { // the program itself is a script that starts it
		program = other
	}
	file := must.Get(elf.Open(program))(t)
	defer file.Close()
	imported := must.Get(file.DynamicSymbols())(t)
	var source strings.Builder
	for _, name := range sources(t, "rows") {
		text := must.Get(os.ReadFile(name))(t)
		source.Write(text)
	}
	for name := range called {
		_, hook := all["hook"][name]
		_, nvml := all["nvml-hook"][name]
		if !hook && !nvml {
			t.Errorf("%s is said to be called, and no hook", name)
		}
		byName := strings.Contains(source.String(), "OPTIONAL("+name+")") ||
			strings.Contains(source.String(), `nvml_symbol("`+name+`")`)
		if !byName && !slices.ContainsFunc(imported, func(s elf.Symbol) bool { return s.Name == name && s.Section == elf.SHN_UNDEF }) {
			t.Errorf("%s is said to be called, and is not", name)
		}
	}
}

// Memory from outside the slice, of another slice or none, is charged while it is open inside. It is refused if it does not fit.
func TestMemoryFromOutsideTheSliceIsChargedWhileItIsOpen(t *testing.T) {
	program := compile(t, "rows")
	gpuslice := filepath.Join(bin(t), "gpuslice")
	makers := []struct {
		name    string
		command []string
	}{
		{"of no slice", []string{program}},
		{"of another slice", []string{gpuslice, "run", "--embedded", "--quiet", "--vram", "8G", "--", program}},
	}
	for _, maker := range makers {
		for _, kind := range []string{"ipc", "fd", "external", "pool"} {
			t.Run(kind+" "+maker.name, func(t *testing.T) {
				env := environment(t)
				socket := filepath.Join(t.TempDir(), "lend")
				lender := exec.Command(maker.command[0], append(maker.command[1:], "lend", kind, socket)...)
				lender.Env = env
				var said strings.Builder
				lender.Stdout, lender.Stderr = &said, &said
				must.Do(t, lender.Start())
				t.Cleanup(func() { _ = lender.Process.Kill() }) // in case the test ended first
				await.That(t, "the lender listens", func() bool { return must.Err(os.Stat(socket)) == nil })
				out, err := inSlice(t, env, "2G", program, "borrow", kind, socket)
				if err != nil || !strings.HasPrefix(out, "PASS ") {
					t.Errorf("%v\n%s", err, out)
				}
				expect.NoError(t, lender.Wait(), "the lender", said.String())
			})
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
