// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/constants"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

var asked = regexp.MustCompile(`(?m)^(?:\.\./)?(?:test/)?deps\.sh --need (\S+) (.*)$`)

func TestASuiteNamesWhatIsMissingAndTheCommandThatInstallsIt(t *testing.T) {
	bin := t.TempDir() // all programs of this machine, besides the sbin directories
	for _, program := range []string{"bash", "dirname", "uname"} {
		path := must.Get(exec.LookPath(program))(t)
		must.Do(t, os.Symlink(path, filepath.Join(bin, program)))
	}
	need := func(what ...string) (said string, code int) {
		cmd := exec.Command("../deps.sh", append([]string{"--need", "test-x"}, what...)...)
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if said, code := need("xz", "uname", "pkg-config"); code != 1 || said != "test-x needs xz pkg-config, which this machine has not: sudo apt-get install xz-utils pkg-config\n" {
		t.Errorf("%d: %s", code, said)
	}
	if said, code := need("uname", "bash"); code != 0 || said != "" {
		t.Errorf("%d: %s", code, said)
	}
}

// A command missing from the list would be taken for a package name.
func TestThePackageListHasTheNeedsOfEachSuite(t *testing.T) {
	list := must.Get(os.ReadFile("../deps.sh"))(t)
	suites := 0
	for _, dir := range []string{"..", "../../kubernetes"} {
		err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".sh") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, suite := range asked.FindAllStringSubmatch(string(text), -1) {
				suites++
				for what := range strings.FieldsSeq(suite[2]) {
					expect.Contains(t, string(list), "\t\""+what+" ", path, suite[1], "needs", what, "of which test/deps.sh knows the package")
				}
			}
			return err
		})
		must.Do(t, err)
	}
	expect.True(t, suites >= 4, suites, "suites say what they need")
}

// privilege matches a skip reason for which Root exists.
var privilege = regexp.MustCompile(`(?i)\broot\b|\bprivilege|\bCAP_`)

func TestRootIsAskedForInOnePlace(t *testing.T) {
	asked, files := 0, token.NewFileSet()
	must.Do(t, constants.Walk("../..", files, func(name string, file *ast.File) {
		if strings.HasPrefix(name, "test/needs/") || strings.HasPrefix(name, "kubernetes/") {
			return
		}
		if calls(file, "Root") {
			asked++
		}
		for _, line := range ownSkips(files, file) {
			t.Errorf("%s:%d: a test that needs root calls needs.Root", name, line)
		}
	}))
	expect.True(t, asked >= 30, asked, "files with calls were found")
}

func TestASkipForWantOfRootIsFound(t *testing.T) {
	const text = "package p\nfunc f() {\n if os.Geteuid() != 0 {\n  t.Skip(`no`)\n }\n t.Skipf(\"needs root: %v\", err)\n t.Skip(\"needs runc\")\n needs.Root(t)\n}\n"
	files := token.NewFileSet()
	expect.EqualSlices(t, ownSkips(files, must.Get(parser.ParseFile(files, "p.go", text, 0))(t)), []int{3, 6}, "lines")
}

// ownSkips returns the lines that skip a test for lack of root.
func ownSkips(files *token.FileSet, file *ast.File) (lines []int) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if calls(n.Cond, "Getuid", "Geteuid") && calls(n.Body, "Skip", "Skipf", "SkipNow") {
				lines = append(lines, files.Position(n.Pos()).Line)
			}
		case *ast.CallExpr:
			if !named(n, "Skip", "Skipf") || len(n.Args) == 0 {
				break
			}
			if reason, ok := n.Args[0].(*ast.BasicLit); ok && privilege.MatchString(reason.Value) {
				lines = append(lines, files.Position(n.Pos()).Line)
			}
		}
		return true
	})
	return lines
}

// calls reports whether n calls a method or function with one of the names.
func calls(n ast.Node, names ...string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && named(call, names...)
		return !found
	})
	return found
}

func named(call *ast.CallExpr, names ...string) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(names, f.Sel.Name)
}
