// SPDX-License-Identifier: Apache-2.0

package await

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/constants"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	tooLong = "a measured time above a bound fails the test: log it, or use await.Once"
	tooSoon = "a wait ends before await.Patience"
	hopeful = "an assertion follows a sleep: use await.That, or await.Quiet if nothing must happen"
)

// exceptions lists code that looks like it depends on wall time but does not, by file, or file and function.
var exceptions = map[string]string{
	"api/client/client_test.go TestRequestToHungEnforcerTimesOut":           "its deadline passes on purpose",
	"hook/roots/roots_test.go TestOneHookAtATime":                           "its deadline passes on purpose",
	"kubernetes/plugin/plugin_test.go TestDeviceHealthComesFromTheEnforcer": "its deadline passes on purpose: load can only hide a message",
	"enforcer/ledger/ledger_test.go TestMoveRequestWakesTheProcess":         "without the sleep a wait that is not needed passes, too",
	"enforcer/pace/pace_test.go aCanceledWaiterTakesNoTurn":                 "the time of its bubble passes while all goroutines wait",
	"api/server/limits_test.go holdMany":                                    "each read is tried again",
	"test/faults/daemon_test.go up":                                         "each question is repeated",
	"test/e2e/elastic_test.go killedAtAnyTime":                              "a state that is missed costs a kill at that moment",
	"test/hostile/client_actions_test.go":                                   "a hostile client gives up, and acts again",
	"test/hostile/user_actions_test.go floodWithDescriptors":                "a hostile process gives up, and acts again",
	"test/hostile/container_actions_test.go connect":                        "a hostile process gives up, and acts again",
	"test/hostile/user_floods_test.go dial":                                 "a hostile user gives up, and acts again",
	"test/hostile/user_floods_test.go readNothing":                          "a hostile user gives up, and acts again",
}

// Tests wait for events with Patience, and assert measured times in Once only.
func TestNoTestIsDecidedByWallTime(t *testing.T) {
	all, excepted := newTree(), make(map[string]bool)
	must.Do(t, constants.Walk(filepath.Join("..", ".."), all.fset, all.add))
	for _, f := range all.faults() {
		if key := f.file + " " + f.function; exceptions[key] != "" {
			excepted[key] = true
		} else if exceptions[f.file] != "" {
			excepted[f.file] = true
		} else {
			t.Errorf("%s:%d: %s: %s", f.file, f.line, f.function, f.fault)
		}
	}
	for key := range exceptions {
		expect.True(t, excepted[key], key, "the exception is not needed")
	}
}

type fault struct {
	file     string
	line     int
	function string
	fault    string
}

// tree has the files of tests by name, and the names of their functions that return an elapsed time, by directory.
type tree struct {
	fset     *token.FileSet
	source   constants.Source
	files    map[string]*ast.File
	measures map[string]map[string]bool
}

func newTree() *tree {
	return &tree{token.NewFileSet(), make(constants.Source), make(map[string]*ast.File), make(map[string]map[string]bool)}
}

func (all *tree) add(name string, file *ast.File) {
	all.source.Add(path.Dir(name), file)
	if strings.HasSuffix(name, "_test.go") {
		all.files[name] = file
	}
}

func (all *tree) faults() (found []fault) {
	each := func(do func(name string, s *scope, f *ast.FuncDecl)) {
		for _, name := range slices.Sorted(maps.Keys(all.files)) {
			for _, d := range all.files[name].Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					do(name, newScope(all, path.Dir(name), f), f)
				}
			}
		}
	}
	each(func(name string, s *scope, f *ast.FuncDecl) {
		if s.returnsTime() {
			if all.measures[s.dir] == nil {
				all.measures[s.dir] = make(map[string]bool)
			}
			all.measures[s.dir][f.Name.Name] = true
		}
	})
	each(func(name string, s *scope, f *ast.FuncDecl) {
		s.look()
		for _, at := range slices.Sorted(maps.Keys(s.found)) {
			found = append(found, fault{name, all.fset.Position(at).Line, f.Name.Name, s.found[at]})
		}
	})
	return found
}

type scope struct {
	all    *tree
	dir    string
	body   *ast.BlockStmt
	values map[string]ast.Expr // first value of each local variable and constant
	polls  []*ast.CallExpr     // calls that poll
	found  map[token.Pos]string
}

func newScope(all *tree, dir string, f *ast.FuncDecl) *scope {
	s := &scope{all: all, dir: dir, body: f.Body, values: make(map[string]ast.Expr), found: make(map[token.Pos]string)}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					s.bind(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			if len(n.Names) == len(n.Values) {
				for i := range n.Names {
					s.bind(n.Names[i], n.Values[i])
				}
			}
		}
		return true
	})
	return s
}

func (s *scope) bind(name, value ast.Expr) {
	if n, ok := name.(*ast.Ident); ok && s.values[n.Name] == nil {
		s.values[n.Name] = value
	}
}

// called returns the dotted name of the called function, or "" if there is none.
func called(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	return dotted(call.Fun)
}

func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	}
	return ""
}

func last(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// has reports whether n or a node below it satisfies the condition.
func has(n ast.Node, is func(ast.Node) bool) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && is(n)
		return !found
	})
	return found
}

// fails reports whether a node fails a test or returns a failure.
func fails(n ast.Node) bool {
	return has(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := last(called(n)); name {
			case "Fatal", "Fatalf", "Errorf", "FailNow", "Fail", "panic":
				return true
			case "Error":
				return len(n.Args) > 0
			}
		case *ast.ReturnStmt:
			for _, r := range n.Results {
				if name, ok := r.(*ast.Ident); ok && (name.Name == "false" || name.Name == "err") || called(r) == "errors.New" {
					return true
				}
			}
		}
		return false
	})
}

func (s *scope) duration(e ast.Expr) (time.Duration, bool) {
	v, err := s.all.source.Eval(s.dir, s.values, e)
	if err != nil {
		return 0, false
	}
	n, exact := constant.Int64Val(constant.ToInt(v.Value))
	return time.Duration(n), exact
}

// short reports whether a wait is known to be shorter than Patience.
func (s *scope) short(e ast.Expr) bool {
	d, known := s.duration(e)
	return known && d > 0 && d < Patience
}

// measured reports whether an expression is an elapsed time.
func (s *scope) measured(e ast.Expr) bool {
	return has(e, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && s.values[name.Name] != nil {
			return has(s.values[name.Name], func(n ast.Node) bool { return s.measures(n) })
		}
		return s.measures(n)
	})
}

func (s *scope) measures(n ast.Node) bool {
	name := called(n)
	return name == "time.Since" || last(name) == "Sub" || name != "" && s.all.measures[s.dir][last(name)]
}

func (s *scope) returnsTime() bool {
	return has(s.body, func(n ast.Node) bool {
		r, ok := n.(*ast.ReturnStmt)
		return ok && slices.ContainsFunc(r.Results, func(e ast.Expr) bool {
			name, ok := e.(*ast.Ident)
			return called(e) == "time.Since" || ok && s.values[name.Name] != nil && called(s.values[name.Name]) == "time.Since"
		})
	})
}

func (s *scope) ends(e ast.Expr) (ast.Expr, bool) {
	if name, ok := e.(*ast.Ident); ok && s.values[name.Name] != nil {
		e = s.values[name.Name]
	}
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, false
	}
	add, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || add.Sel.Name != "Add" || called(add.X) != "time.Now" {
		return nil, false
	}
	return call.Args[0], true
}

// passes reports whether a node compares time.Now, by the named method, with a deadline nearer than Patience.
func (s *scope) passes(n ast.Node, method string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	compare, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || compare.Sel.Name != method || called(compare.X) != "time.Now" {
		return false
	}
	d, ok := s.ends(call.Args[0])
	return ok && s.short(d)
}

func (s *scope) look() {
	ast.Inspect(s.body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := last(called(n)); name {
			case "Once": // measures the time itself
				return called(n) != "await.Once"
			case "eventually", "Eventually", "That": // retry after a timeout
				s.polls = append(s.polls, n)
			}
			s.lookAtCall(n)
		case *ast.IfStmt:
			s.lookAtIf(n)
		case *ast.ForStmt:
			s.lookAtFor(n)
		case *ast.CommClause:
			if n.Comm == nil || !slices.ContainsFunc(n.Body, func(b ast.Stmt) bool { return fails(b) }) {
				break
			}
			has(n.Comm, func(c ast.Node) bool {
				if called(c) == "time.After" && s.short(c.(*ast.CallExpr).Args[0]) {
					s.found[n.Pos()] = tooSoon
				}
				return false
			})
		case *ast.BlockStmt:
			s.lookAtSleeps(n.List)
		case *ast.CaseClause:
			s.lookAtSleeps(n.Body)
		}
		return true
	})
}

func (s *scope) lookAtCall(n *ast.CallExpr) {
	switch name := called(n); last(name) {
	case "WithTimeout":
		again := slices.ContainsFunc(s.polls, func(p *ast.CallExpr) bool { return p.Pos() < n.Pos() && n.End() < p.End() })
		if len(n.Args) == 2 && s.short(n.Args[1]) && !again {
			s.found[n.Pos()] = tooSoon
		}
	case "Command", "CommandContext":
		for i, a := range n.Args[:max(len(n.Args)-1, 0)] {
			word, ok := a.(*ast.BasicLit)
			after, isLiteral := n.Args[i+1].(*ast.BasicLit)
			if !ok || !isLiteral || word.Value != `"timeout"` {
				continue
			}
			if seconds, err := strconv.Atoi(strings.Trim(after.Value, `"`)); err == nil && time.Duration(seconds)*time.Second < Patience {
				s.found[n.Pos()] = tooSoon
			}
		}
	case "WithDeadline", "SetDeadline", "SetReadDeadline", "SetWriteDeadline":
		if d, ok := s.ends(n.Args[len(n.Args)-1]); ok && s.short(d) {
			s.found[n.Pos()] = tooSoon
		}
	case "AfterFunc":
		kills := func(n ast.Node) bool { return last(called(n)) == "Kill" }
		if name == "time.AfterFunc" && s.short(n.Args[0]) && (fails(n.Args[1]) || has(n.Args[1], kills)) {
			s.found[n.Pos()] = tooSoon
		}
	}
}

func (s *scope) lookAtIf(n *ast.IfStmt) {
	if !fails(n.Body) {
		return
	}
	has(n.Cond, func(c ast.Node) bool {
		if s.passes(c, "After") {
			s.found[n.Pos()] = tooSoon
		}
		b, ok := c.(*ast.BinaryExpr)
		if !ok {
			return false
		}
		large, small := b.X, b.Y
		switch b.Op {
		case token.GTR, token.GEQ:
		case token.LSS, token.LEQ:
			large, small = b.Y, b.X
		default:
			return false
		}
		if d, known := s.duration(small); s.measured(large) && (!known || d < Patience) && !s.measured(small) {
			s.found[n.Pos()] = tooLong
		}
		return false
	})
}

// lookAtFor reports a waiting loop: one with an exit besides its deadline.
func (s *scope) lookAtFor(n *ast.ForStmt) {
	if n.Cond == nil || !has(n.Cond, func(c ast.Node) bool { return s.passes(c, "Before") }) {
		return
	}
	_, more := n.Cond.(*ast.BinaryExpr)
	leaves := has(n.Body, func(n ast.Node) bool {
		b, ok := n.(*ast.BranchStmt)
		_, returns := n.(*ast.ReturnStmt)
		return returns || ok && b.Tok == token.BREAK
	})
	if more || leaves {
		s.found[n.Pos()] = tooSoon
	}
}

// lookAtSleeps reports a sleep that precedes an assertion.
func (s *scope) lookAtSleeps(list []ast.Stmt) {
	for i, stmt := range list[:max(len(list)-1, 0)] {
		sleep, ok := stmt.(*ast.ExprStmt)
		if !ok || called(sleep.X) != "time.Sleep" {
			continue
		}
		next := list[i+1]
		if _, ok := next.(*ast.AssignStmt); ok && i+2 < len(list) {
			next = list[i+2]
		}
		if statement, ok := next.(*ast.IfStmt); ok && fails(statement.Body) {
			s.found[stmt.Pos()] = hopeful
		}
	}
}

func TestTestsThatDependOnWallTimeAreFound(t *testing.T) {
	const values = "const short, long = 3 * time.Second, await.Patience\nfunc took() time.Duration { begin := time.Now(); return time.Since(begin) }\n"
	for source, want := range map[string]string{
		// Measured times.
		`if took := time.Since(begin); took > short { t.Errorf("slow") }`:                                tooLong,
		`if err != nil || time.Since(begin) >= short { t.Fatal(err) }`:                                   tooLong,
		`if short < time.Since(begin) { t.Fatal("slow") }`:                                               tooLong,
		`if took := took(); took > short { t.Fatal("slow") }`:                                            tooLong,
		`took := end.Sub(begin); if took > unknown { t.FailNow() }`:                                      tooLong,
		`if time.Since(begin) > short { return errors.New("slow") }`:                                     tooLong,
		`if time.Since(begin) > short { t.Log("slow") }`:                                                 "",
		`if time.Since(begin) > long { t.Fatal("hangs") }`:                                               "",
		`if time.Since(begin) < short { t.Fatal("early") }`:                                              "",
		`if n > 2+int(time.Since(begin)/time.Second) { t.Fatal("too often") }`:                           "",
		`await.Once(t, "it", short, func() time.Duration { if time.Since(b) > short { t.Error("x") } })`: "",
		`var once sync.Once; once.Once(func() { if time.Since(begin) > short { t.Error("slow") } })`:     tooLong,
		// Waits.
		`for end := time.Now().Add(short); !is(); { if time.Now().After(end) { t.Fatal("no") } }`:              tooSoon,
		`for end := time.Now().Add(long); !is(); { if time.Now().After(end) { t.Fatal("no") } }`:               "",
		`for end := time.Now().Add(short); !is() && time.Now().Before(end); { }`:                               tooSoon,
		`for end := time.Now().Add(short); time.Now().Before(end); { if is() { return } }`:                     tooSoon,
		`for end := time.Now().Add(short); time.Now().Before(end); { act() }`:                                  "",
		`select { case <-c: case <-time.After(short): t.Fatal("no") }`:                                         tooSoon,
		`select { case <-c: case <-time.After(long / 2): return errors.New("no") }`:                            tooSoon,
		`select { case <-c: t.Fatal("it came") ; case <-time.After(short): }`:                                  "",
		`select { case <-c: case <-time.After(long): t.Fatal("no") }`:                                          "",
		`ctx, cancel := context.WithTimeout(ctx, 10*time.Second)`:                                              tooSoon,
		`ctx, cancel := context.WithTimeout(ctx, long)`:                                                        "",
		`await.That(t, "it", func() bool { ctx, cancel := context.WithTimeout(ctx, short); return ask(ctx) })`: "",
		`_ = conn.SetReadDeadline(time.Now().Add(short))`:                                                      tooSoon,
		`_ = conn.SetReadDeadline(time.Now().Add(2 * long))`:                                                   "",
		`time.AfterFunc(short, func() { _ = cmd.Process.Kill() })`:                                             tooSoon,
		`time.AfterFunc(short, func() { close(c) })`:                                                           "",
		`exec.Command("timeout", "3", program)`:                                                                tooSoon,
		// Sleeps.
		`time.Sleep(short); if !is() { t.Fatal("no") }`:                       hopeful,
		`time.Sleep(short); n := count(); if n != 3 { t.Errorf("%d", n) }`:    hopeful,
		`switch { case true: time.Sleep(short); if !is() { t.Fatal("no") } }`: hopeful,
		`time.Sleep(short); act()`:                                            "",
	} {
		all := newTree()
		for name, text := range map[string]string{
			"p/x_test.go":         "package p\nimport \"github.com/gpuslice/gpuslice/test/await\"\n" + values + "func TestX(t *testing.T) {\n" + source + "\n}\n",
			"test/await/await.go": "package await\nconst Patience = time.Minute\n",
		} {
			all.add(name, must.Get(parser.ParseFile(all.fset, name, text, parser.SkipObjectResolution))(t, source))
		}
		got := ""
		for _, f := range all.faults() {
			got += f.fault
		}
		expect.Equal(t, got, want, source, "found")
	}
}
