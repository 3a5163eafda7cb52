// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"debug/elf"
	"encoding/xml"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// The picture names every package of these directories, and a package imports only packages of lower rows.
func TestImportsFollowTheLayers(t *testing.T) {
	const picture, module = "docs/pictures/packages.svg", "github.com/gpuslice/gpuslice/"
	rows, seen := packagesIn(t, filepath.Join(root, picture)), make(map[string]bool)
	for _, dir := range []string{"api", "daemon", "enforcer", "hostmem"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(root, filepath.Dir(path))
			of := strings.TrimPrefix(name, "enforcer/")
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "testdata":
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(of, "test"):
				return nil
			}
			row, known := rows[of]
			if !known && !seen[of] {
				t.Errorf("%s does not name %s", picture, of)
			}
			seen[of] = true
			file := must.Get(parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly))(t)
			for _, spec := range file.Imports {
				name := must.Get(strconv.Unquote(spec.Path.Value))(t)
				if below, ours := strings.CutPrefix(name, module); ours && rows[strings.TrimPrefix(below, "enforcer/")] <= row {
					t.Errorf("%s imports %s, which is in no lower row of %s", path, below, picture)
				}
			}
			return nil
		})
		must.Do(t, err)
	}
	for name := range rows {
		expect.True(t, seen[name], picture, "names", name, "which is no package")
	}
}

// The picture names every file of the interceptor, and a file calls only files of lower rows, or those that its lists collect (upcall.h).
func TestInterceptorCallsFollowTheLayers(t *testing.T) {
	const picture = "docs/pictures/interceptor.svg"
	rows, defined, used := packagesIn(t, filepath.Join(root, picture)), make(map[string]string), make(map[string][]string)
	files := must.Get(filepath.Glob(filepath.Join(must.Get(filepath.Abs(root))(t), "interceptor/*.c")))(t)
	cc := exec.Command("cc", append([]string{"-std=c11", "-D_GNU_SOURCE", "-fPIC", "-c"}, files...)...)
	cc.Dir = t.TempDir()
	must.Output(cc.CombinedOutput())(t)
	for _, file := range files {
		of := strings.TrimSuffix(filepath.Base(file), ".c")
		for _, s := range must.Get(must.Get(elf.Open(filepath.Join(cc.Dir, of+".o")))(t).Symbols())(t) {
			if s.Section == elf.SHN_UNDEF {
				used[of] = append(used[of], s.Name)
			} else if elf.ST_BIND(s.Info) == elf.STB_GLOBAL {
				defined[s.Name] = of
			}
		}
		if strings.HasPrefix(of, "hook_") && rows[of] == 0 {
			rows[of] = rows["hook_*"]
		}
		expect.True(t, rows[of] != 0, picture, "names", of)
	}
	for of, names := range used {
		for _, name := range names {
			if to := defined[name]; to != "" && to != of && rows[to] <= rows[of] {
				t.Errorf("interceptor/%s uses %s of %s, which is in no lower row of %s", of, name, to, picture)
			}
		}
	}
}

// packagesIn returns the texts of class "package" in a picture, with their vertical positions.
func packagesIn(t *testing.T, path string) map[string]int {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	var picture struct {
		Texts []struct {
			Class string `xml:"class,attr"`
			Down  int    `xml:"y,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	must.Do(t, xml.Unmarshal(text, &picture), path)
	packages := make(map[string]int)
	for _, text := range picture.Texts {
		if text.Class == "package" {
			packages[text.Text] = text.Down
		}
	}
	return packages
}
