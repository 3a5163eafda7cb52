// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/test/constants"
)

// load has the project's packages without their tests. The number of slots is from ledger.h.
func load() (constants.Source, error) {
	all := make(constants.Source)
	err := constants.Walk(root, token.NewFileSet(), func(name string, file *ast.File) {
		if !strings.HasSuffix(name, "_test.go") {
			all.Add(path.Dir(name), file)
		}
	})
	if err == nil {
		all["enforcer/ledger"].Values["Slots"] = &ast.BasicLit{Kind: token.INT, Value: strconv.Itoa(ledger.Slots)}
	}
	return all, err
}

// limits returns the names of constants, and of the fields of structs that are package variables.
func limits(p *constants.Package) []string {
	all := p.Consts
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
	for name, e := range p.Values {
		if _, ok := e.(*ast.CompositeLit); ok {
			fields(name, e)
		}
	}
	return all
}

// valueOf returns the value of a name such as api/server.userLimits.header.
func valueOf(s constants.Source, name string) (constants.Value, error) {
	dir, path, _ := strings.Cut(name, ".")
	parts := strings.Split(path, ".")
	if s[dir] == nil {
		return constants.Value{}, fmt.Errorf("there is no package %s", dir)
	}
	e := s[dir].Values[parts[0]]
	for _, field := range parts[1:] {
		literal, ok := e.(*ast.CompositeLit)
		if !ok {
			return constants.Value{}, fmt.Errorf("%s: no struct has the field %s", name, field)
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
		return constants.Value{}, fmt.Errorf("%s does not exist", name)
	}
	return s.Eval(dir, nil, e)
}

// text returns the value for a reader: a duration, bytes if so, or a number.
func text(v constants.Value, bytes bool) string {
	n, _ := constant.Int64Val(constant.ToInt(v.Value))
	switch {
	case v.Duration && n%int64(time.Minute) == 0:
		return fmt.Sprintf("%d min", n/int64(time.Minute))
	case v.Duration && n%int64(time.Second) == 0:
		return fmt.Sprintf("%d s", n/int64(time.Second))
	case v.Duration:
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
