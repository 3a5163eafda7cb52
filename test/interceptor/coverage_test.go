// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// table holds the driver's functions in interceptor/driver.def and passes.def: by kind, name and text.
type table map[string]map[string]string

// theTable runs the program that also writes exports.txt and docs/evidence/coverage.md.
func theTable(t *testing.T) table {
	t.Helper()
	program := filepath.Join(t.TempDir(), "table")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	must.Output(exec.Command(cc, "-std=c11", "-I../../interceptor", "-o", program, "../../interceptor/tools/table.c").CombinedOutput())(t)
	out := must.Get(exec.Command(program, "names").Output())(t)
	all := table{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		must.Len(t, f, 3, line, "three fields are expected")
		if all[f[0]] == nil {
			all[f[0]] = map[string]string{}
		}
		if _, twice := all[f[0]][f[1]]; twice {
			t.Errorf("%s has two rows as %s", f[1], f[0])
		}
		all[f[0]][f[1]] = f[2]
	}
	for _, kind := range []string{"hook", "call", "pass", "family", "nvml-hook"} {
		must.True(t, len(all[kind]) > 0, "the table has no row of kind", kind)
	}
	return all
}

func (all table) has(name string) bool {
	for _, kind := range []string{"hook", "call", "pass"} {
		if _, ok := all[kind][name]; ok {
			return true
		}
	}
	return false
}

func exportsOf(t *testing.T, file string) []string {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	var names []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			names = append(names, strings.Fields(line)...)
		}
	}
	return names
}

func card(t *testing.T) []string {
	t.Helper()
	names := exportsOf(t, "exports/libcuda-580.159.04.txt")
	must.Len(t, names, 707, "exports of that driver")
	return names
}

func exported(t *testing.T, library string) []string {
	t.Helper()
	out := must.Get(exec.Command("nm", "-D", "--defined-only", "--format=posix", filepath.Join(bin(t), library)).Output())(t)
	var names []string
	for line := range strings.Lines(string(out)) {
		names = append(names, strings.Split(strings.Fields(line)[0], "@")[0])
	}
	return names
}

// movesMemory matches functions that may allocate, free, limit or share a card's memory. Each needs its own review before it is
// passed.
var movesMemory = regexp.MustCompile(`^cu(` + strings.Join([]string{
	"Mem[A-Z]", "Array", "Mipmapped", // the kinds of memory, without Memcpy and Memset
	"(Import|Destroy)?External", "Ipc", "Multicast", "Checkpoint", // sharing
	"Ctx(Create|Destroy|Attach|Detach|From|SetLimit)", "DevicePrimaryCtx", "GreenCtx(Create|Destroy|Stream)",
	"Device.*Mem", "Graph(Add|Instantiate|Exec|Launch|Upload|Mem)", // a graph may allocate
	"Graphics", "GL", "EGL", "VDPAU",
	"Module(Load|Unload)", "Library(Load|Unload)", "Link", "FuncLoad", "Stream(Create|Destroy)", // overhead
	"Launch(Kernel|Grid|Coop)", "Launch$", "GetExportTable",
}, "|") + `)`)

// stem returns a name without its version and stream suffixes.
func stem(name string) string {
	s, _, _ := strings.Cut(name, "_")
	return s
}

func TestCoverageOfEveryFunctionOfTheDriver(t *testing.T) {
	all := theTable(t)
	passedBy := func(name string) (patterns []string) {
		for pattern := range all["family"] {
			if strings.HasPrefix(name, strings.TrimSuffix(pattern, "*")) {
				patterns = append(patterns, pattern)
			}
		}
		return patterns
	}
	names := card(t)
	matched := map[string]bool{}
	for _, name := range names {
		families := passedBy(name)
		for _, family := range families {
			matched[family] = true
		}
		switch {
		case all.has(name):
		case movesMemory.MatchString(name):
			t.Errorf("%s may move memory and has no row of its own", name)
		case len(families) == 0:
			t.Errorf("%s is neither handled nor passed", name)
		case len(families) > 1:
			t.Errorf("%s is passed by several families: %s", name, families)
		}
	}
	for pattern := range all["family"] {
		if prefix, ok := strings.CutSuffix(pattern, "*"); !ok || len(prefix) < len("cuXxx") || strings.Contains(prefix, "*") {
			t.Errorf("%q is no family: a prefix and one * is", pattern)
		}
		expect.True(t, matched[pattern], pattern, "matches nothing")
	}
	for name := range all["hook"] {
		expect.Equal(t, len(passedBy(name)), 0, name, "is hooked, and passed by families")
	}
	for _, kind := range []string{"hook", "call", "pass"} {
		for name := range all[kind] {
			_, absent := all["absent"][name]
			expect.True(t, slices.Contains(names, name) != absent, name, "a", kind, "must either be of driver 580.159.04, or be said not to be")
		}
	}
	for name := range all["absent"] {
		expect.True(t, all.has(name), name, "where is its row?")
	}
}

// docs/evidence/coverage.md prints these texts.
func TestCoverageSaysWhatAndWhy(t *testing.T) {
	all := theTable(t)
	for _, kind := range []string{"hook", "nvml-hook", "pass", "family", "absent"} {
		for name, text := range all[kind] {
			if strings.TrimSpace(text) == "" || strings.Contains(text, "|") {
				t.Errorf("%s, a %s, says %q", name, kind, text)
			}
		}
	}
}

// If only some versions of a name are hooked, the others bypass the ledger: the interceptor would take them for a newer
// driver's.
func TestCoverageIsOfAllVersionsOfAName(t *testing.T) {
	all := theTable(t)
	hooked := map[string]bool{}
	for name := range all["hook"] {
		hooked[stem(name)] = true
		for _, kind := range []string{"call", "pass"} {
			if _, both := all[kind][name]; both {
				t.Errorf("%s is both hook and %s", name, kind)
			}
		}
	}
	for _, kind := range []string{"call", "pass"} {
		for name := range all[kind] {
			expect.True(t, !hooked[stem(name)], name, "is a", kind, "and another version of it a hook")
		}
	}
	for _, name := range card(t) {
		if _, ok := all["hook"][name]; !ok && hooked[stem(name)] {
			t.Errorf("%s is not hooked, and another version of it is", name)
		}
	}
}

func TestTableOfHooksIsWhatTheLibraryExports(t *testing.T) {
	want := []string{"dlmopen", "dlopen", "dlsym", "dlvsym"}
	all := theTable(t)
	for _, kind := range []string{"hook", "nvml-hook"} {
		for name := range all[kind] {
			want = append(want, name)
		}
	}
	got := exported(t, "libgpuslice.so")
	slices.Sort(want)
	slices.Sort(got)
	expect.EqualSlices(t, got, want, "libgpuslice.so exports what the table has")
	expect.EqualSlices(t, exportsOf(t, "../../interceptor/exports.txt"), want, "interceptor/exports.txt lists what the table has")
}

// A hook missing from the simulated driver is untested, and the list of differences must say so.
func TestCoverageOfTheSimulatedDriverIsTold(t *testing.T) {
	differences := must.Get(os.ReadFile("../conformance/expected/differences.md"))(t)
	simulated := map[string]bool{}
	for _, name := range exported(t, "fakecuda/libcuda.so.1") {
		simulated[stem(name)] = true
	}
	for name := range theTable(t)["hook"] {
		if told := strings.Contains(string(differences), "`procaddr/*"+stem(name)+"*`"); !simulated[stem(name)] && !told {
			t.Errorf("%s: the simulated driver lacks it, and differences.md does not say so", name)
		}
	}
}

func TestWhatIsNotKnownIsLeftToDriverTruthAndSaidOnce(t *testing.T) {
	program := compile(t, "future")
	const unlisted = "cuLogicalMemAlloc"
	cases := []struct {
		name, says string
		ways       []string
	}{
		{"by cuGetProcAddress", "cuMemAlloc of CUDA 99.0", []string{"procaddr"}},
		{"by dlsym", "cuMemAlloc_v99", []string{"dlsym"}},
		{"twice", "cuMemAlloc of CUDA 99.0", []string{"procaddr", "dlsym", "procaddr"}},
		{"a name that no table has", unlisted, []string{"unlisted", "unlisted-dlsym"}},
		{"that by dlsym", unlisted, []string{"unlisted-dlsym", "unlisted"}},
		{"that of the next object", unlisted, []string{"unlisted-next"}},
		{"known ones", "", []string{"others", "old"}},
		{"one that only tells", "", []string{"tells", "tells-dlsym", "old"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			out := must.Output(inSlice(t, environment(t, "FAKECUDA_FUTURE=1", "FAKECUDA_CONTEXT=64M"), "4G", append([]string{program}, c.ways...)...))(t)
			want := ""
			if c.says != "" {
				why := " is newer than"
				if c.says == unlisted {
					why = " is not known to"
				}
				want = "gpuslice: " + c.says + why + " this gpuslice: driver truth alone counts what it allocates\n"
			}
			expect.Equal(t, out, want)
		})
	}
}

// The test looks up every export of the measured driver; none may be unknown.
func TestNothingOfTheMeasuredDriverIsSaidToBeUnknown(t *testing.T) {
	source := filepath.Join(t.TempDir(), "listed.c")
	var text strings.Builder
	text.WriteString("#include \"listed.h\"\n#include <stdio.h>\nint main(void)\n{\n")
	all := theTable(t)
	for _, name := range card(t) {
		_, hook := all["hook"][name]
		_, call := all["call"][name]
		if !hook && !call {
			text.WriteString("\tif (!listed(\"" + name + "\", false) || !listed(\"" + stem(name) + "\", true))\n\t\tputs(\"" + name + "\");\n")
		}
	}
	for _, name := range []string{"cu", "cuA", "cuGraphAdd", "cuLogicalEndpoint", "cuzzz", "zzz", ""} {
		text.WriteString("\tif (listed(\"" + name + "\", false) || listed(\"" + name + "\", true))\n\t\tputs(\"not: " + name + "\");\n")
	}
	text.WriteString("}\n")
	must.Do(t, os.WriteFile(source, []byte(text.String()), 0o644))
	program := filepath.Join(t.TempDir(), "listed")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	must.Output(exec.Command(cc, "-std=c11", "-I../../interceptor", "-o", program, source, "../../interceptor/listed.c").CombinedOutput())(t)
	expect.Equal(t, string(must.Output(exec.Command(program).Output())(t)), "", "of these the answer is wrong")
}
