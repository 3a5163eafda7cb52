// SPDX-License-Identifier: Apache-2.0

// Package constants evaluates constants, and literals of package variables, from the text of the project's packages.
package constants

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/gpuslice/gpuslice/"

var units = map[string]time.Duration{"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}

// Value is that of a constant. A duration is a number of nanoseconds.
type Value struct {
	constant.Value
	Duration bool
}

// Source has the packages by their directories.
type Source map[string]*Package

type Package struct {
	Values  map[string]ast.Expr
	Consts  []string
	imports map[string]string // path by name
}

// Walk parses the Go files below a directory, whatever their build tags. name is slash-separated and relative to it.
func Walk(root string, fset *token.FileSet, each func(name string, file *ast.File)) error {
	return filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		switch n := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && at != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin"):
			return fs.SkipDir
		case !strings.HasSuffix(n, ".go"):
			return nil
		}
		name, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, at, nil, parser.SkipObjectResolution)
		if err == nil {
			each(filepath.ToSlash(name), file)
		}
		return err
	})
}

// Add adds the declarations of a file to the package of a directory.
func (s Source) Add(dir string, file *ast.File) {
	p := s[dir]
	if p == nil {
		p = &Package{Values: make(map[string]ast.Expr), imports: make(map[string]string)}
		s[dir] = p
	}
	for _, i := range file.Imports {
		if in, err := strconv.Unquote(i.Path.Value); err == nil {
			p.imports[path.Base(in)] = in
		}
	}
	for _, d := range file.Decls {
		general, ok := d.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST && general.Tok != token.VAR {
			continue
		}
		for _, spec := range general.Specs {
			named := spec.(*ast.ValueSpec)
			for i, name := range named.Names {
				if i < len(named.Values) {
					p.Values[name.Name] = named.Values[i]
					if general.Tok == token.CONST {
						p.Consts = append(p.Consts, name.Name)
					}
				}
			}
		}
	}
}

// Eval evaluates an expression of a package. local has the values of variables of its function; each counts once.
func (s Source) Eval(dir string, local map[string]ast.Expr, e ast.Expr) (Value, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT || e.Kind == token.FLOAT {
			return Value{Value: constant.MakeFromLiteral(e.Value, e.Kind, 0)}, nil
		}
	case *ast.ParenExpr:
		return s.Eval(dir, local, e.X)
	case *ast.Ident:
		if v := local[e.Name]; v != nil {
			rest := make(map[string]ast.Expr)
			for name, value := range local {
				if name != e.Name {
					rest[name] = value
				}
			}
			return s.Eval(dir, rest, v)
		}
		return s.named(dir, e.Name)
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok || s[dir] == nil {
			break
		}
		if unit := units[e.Sel.Name]; x.Name == "time" && unit != 0 {
			return Value{constant.MakeInt64(int64(unit)), true}, nil
		}
		if in, ok := strings.CutPrefix(s[dir].imports[x.Name], module); ok {
			return s.named(in, e.Sel.Name)
		}
	case *ast.CallExpr: // a conversion
		if len(e.Args) == 1 {
			if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Duration" {
				return s.Eval(dir, local, e.Args[0])
			}
		}
	case *ast.BinaryExpr:
		x, err := s.Eval(dir, local, e.X)
		if err != nil {
			return Value{}, err
		}
		y, err := s.Eval(dir, local, e.Y)
		if err != nil {
			return Value{}, err
		}
		if e.Op == token.SHL {
			by, _ := constant.Uint64Val(y.Value)
			return Value{Value: constant.Shift(x.Value, e.Op, uint(by))}, nil
		}
		return Value{constant.BinaryOp(x.Value, e.Op, y.Value), x.Duration || y.Duration}, nil
	}
	return Value{}, fmt.Errorf("%s: the expression is not evaluated", dir)
}

func (s Source) named(dir, name string) (Value, error) {
	if p := s[dir]; p != nil && p.Values[name] != nil {
		return s.Eval(dir, nil, p.Values[name])
	}
	return Value{}, fmt.Errorf("%s.%s does not exist", dir, name)
}
