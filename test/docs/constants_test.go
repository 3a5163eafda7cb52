// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

const module = "github.com/gpuslice/gpuslice/"

// value is that of a constant. A duration is a number of nanoseconds.
type value struct {
	constant.Value
	duration bool
}

// source evaluates constants and literals of package variables from the text of the packages.
type source map[string]*pkg

type pkg struct {
	values  map[string]ast.Expr
	consts  []string
	imports map[string]string // path by name
}

func (s source) load(dir string) (*pkg, error) {
	if p := s[dir]; p != nil {
		return p, nil
	}
	p := &pkg{values: make(map[string]ast.Expr), imports: make(map[string]string)}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, err
			}
			p.imports[filepath.Base(path)] = path
		}
		for _, d := range f.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST && general.Tok != token.VAR {
				continue
			}
			for _, spec := range general.Specs {
				named := spec.(*ast.ValueSpec)
				for i, name := range named.Names {
					if i < len(named.Values) {
						p.values[name.Name] = named.Values[i]
						if general.Tok == token.CONST {
							p.consts = append(p.consts, name.Name)
						}
					}
				}
			}
		}
	}
	s[dir] = p
	return p, nil
}

// limits returns the names of constants, and of the fields of structs that are package variables.
func (p *pkg) limits() []string {
	all := p.consts
	var fields func(name string, e ast.Expr)
	fields = func(name string, e ast.Expr) {
		literal, ok := e.(*ast.CompositeLit)
		if !ok {
			all = append(all, name)
			return
		}
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok {
					fields(name+"."+key.Name, pair.Value)
				}
			}
		}
	}
	for name, e := range p.values {
		if _, ok := e.(*ast.CompositeLit); ok {
			fields(name, e)
		}
	}
	return all
}

// of returns the value of a name such as api/server.userLimits.header.
func (s source) of(name string) (value, error) {
	if name == "enforcer/ledger.Slots" { // from ledger.h
		return value{Value: constant.MakeInt64(int64(ledger.Slots))}, nil
	}
	dir, path, _ := strings.Cut(name, ".")
	p, err := s.load(dir)
	if err != nil {
		return value{}, err
	}
	parts := strings.Split(path, ".")
	e := p.values[parts[0]]
	for _, field := range parts[1:] {
		literal, ok := e.(*ast.CompositeLit)
		if !ok {
			return value{}, fmt.Errorf("%s: no struct has the field %s", name, field)
		}
		e = nil
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok && key.Name == field {
					e = pair.Value
				}
			}
		}
	}
	if e == nil {
		return value{}, fmt.Errorf("%s does not exist", name)
	}
	return s.eval(dir, p, e)
}

func (s source) eval(dir string, p *pkg, e ast.Expr) (value, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT || e.Kind == token.FLOAT {
			return value{Value: constant.MakeFromLiteral(e.Value, e.Kind, 0)}, nil
		}
	case *ast.ParenExpr:
		return s.eval(dir, p, e.X)
	case *ast.Ident:
		if p.values[e.Name] != nil {
			return s.of(dir + "." + e.Name)
		}
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok {
			break
		}
		if x.Name == "time" {
			unit, ok := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]
			if ok {
				return value{constant.MakeInt64(int64(unit)), true}, nil
			}
		}
		if in, ok := strings.CutPrefix(p.imports[x.Name], module); ok {
			return s.of(in + "." + e.Sel.Name)
		}
	case *ast.BinaryExpr:
		x, err := s.eval(dir, p, e.X)
		if err != nil {
			return value{}, err
		}
		y, err := s.eval(dir, p, e.Y)
		if err != nil {
			return value{}, err
		}
		if e.Op == token.SHL {
			by, _ := constant.Uint64Val(y.Value)
			return value{Value: constant.Shift(x.Value, e.Op, uint(by))}, nil
		}
		return value{constant.BinaryOp(x.Value, e.Op, y.Value), x.duration || y.duration}, nil
	}
	return value{}, fmt.Errorf("%s: the expression is not evaluated", dir)
}

// text returns the value for a reader: a duration, bytes if so, or a number.
func (v value) text(bytes bool) string {
	n, _ := constant.Int64Val(constant.ToInt(v.Value))
	switch {
	case v.duration && n%int64(time.Minute) == 0:
		return fmt.Sprintf("%d min", n/int64(time.Minute))
	case v.duration && n%int64(time.Second) == 0:
		return fmt.Sprintf("%d s", n/int64(time.Second))
	case v.duration:
		return fmt.Sprintf("%d ms", n/int64(time.Millisecond))
	case bytes && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case bytes && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// packages returns the directories with Go files below dirs.
func packages(dirs ...string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() != "testdata" {
				path, err = filepath.Rel(root, path)
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
