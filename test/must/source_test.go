// SPDX-License-Identifier: Apache-2.0

package must

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/constants"
)

// A test that parses a program's output reads standard output only: libraries write other text to standard error.
func TestNoTestTakesStandardErrorApart(t *testing.T) {
	fset, packages := token.NewFileSet(), make(map[string][]*ast.File)
	Do(t, constants.Walk(filepath.Join("..", ".."), fset, func(name string, file *ast.File) {
		packages[path.Dir(name)] = append(packages[path.Dir(name)], file)
	}))
	for _, files := range packages {
		for _, at := range mixed(files) {
			if at := fset.Position(at); strings.HasSuffix(at.Filename, "_test.go") {
				t.Errorf("%s: it takes standard error apart, too: use Printed", at)
			}
		}
	}
}

func TestReadersOfStandardErrorAreFound(t *testing.T) {
	for body, want := range map[string]int{
		`out, err := c.CombinedOutput(); fmt.Sscan(string(out), &n)`:                    1,
		`out, err := c.Output(); fmt.Sscan(string(out), &n)`:                            0,
		`out := must.Output(c.CombinedOutput())(t); json.Unmarshal(out, &v)`:            1,
		`out, _ := c.CombinedOutput(); t.Log(out); out, _ = c.Output(); f(Fields(out))`: 0,
		`out, _ := c.CombinedOutput(); strconv.Atoi(strings.TrimSpace(string(out)))`:    1,
		`out, _ := c.CombinedOutput(); strings.Contains(string(out), "no such option")`: 0,
		`out, _ := h.both(); strings.Split(out, "\n")`:                                  1,
		`out, _ := h.one(); strings.Split(out, "\n")`:                                   0,
	} {
		file := Get(parser.ParseFile(token.NewFileSet(), "x.go", `package x
func f() {`+body+`}
func (h *host) both() (string, error) { out, err := c.CombinedOutput(); return string(out), err }
func (h *host) one() (string, error) { out, err := c.Output(); return string(out), err }`, 0))(t)
		if found := mixed([]*ast.File{file}); len(found) != want {
			t.Errorf("%s: %d found, want %d", body, len(found), want)
		}
	}
}

// readers parse or decode a program's output.
var readers = map[string]bool{
	"Sscan": true, "Sscanf": true, "Sscanln": true, "Unmarshal": true, "NewDecoder": true,
	"Atoi": true, "ParseInt": true, "ParseUint": true, "ParseFloat": true, "Fields": true, "FieldsSeq": true, "Split": true, "SplitSeq": true,
}

// mixed returns the calls of readers in one package that get the result of CombinedOutput, or of a function that returns it.
func mixed(files []*ast.File) (found []token.Pos) {
	sources := map[string]bool{"CombinedOutput": true}
	for known := 0; known != len(sources); { // until no function is new
		known, found = len(sources), nil
		for _, file := range files {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					calls, returns := inFunction(f, sources)
					if found = append(found, calls...); returns {
						sources[f.Name.Name] = true
					}
				}
			}
		}
	}
	return found
}

func inFunction(f *ast.FuncDecl, sources map[string]bool) (found []token.Pos, returns bool) {
	outs := make(map[string]bool) // variables that have the result
	has := func(n ast.Node) (is bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				is = is || outs[n.Name]
			case *ast.CallExpr:
				if strings.HasPrefix(name(n), "Find") { // a pattern is explicit about its match
					return false
				}
				is = is || sources[name(n)]
			}
			return !is
		})
		return is
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Rhs) == 1 {
				outs[id.Name] = has(n.Rhs[0])
			}
		case *ast.CallExpr:
			if readers[name(n)] && len(n.Args) > 0 && has(n.Args[0]) {
				found = append(found, n.Pos())
			}
		case *ast.ReturnStmt:
			returns = returns || len(n.Results) > 0 && has(n.Results[0])
		}
		return true
	})
	return found, returns
}

func name(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
