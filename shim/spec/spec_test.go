// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write testdata/*.golden.json")

var (
	ourPrestart = specs.Hook{Path: "/usr/bin/gpuslice-hook", Args: []string{"gpuslice-hook", "prestart"}, Env: []string{"PATH=/bin"}, Timeout: new(15)}
	ourPoststop = specs.Hook{Path: "/usr/bin/gpuslice-hook", Args: []string{"gpuslice-hook", "poststop"}, Env: []string{"PATH=/bin"}, Timeout: new(15)}
)

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		golden := strings.TrimSuffix(file, ".json") + ".golden.json"
		if strings.HasSuffix(file, ".golden.json") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before := bytes.Clone(in)
			got, err := AddHooks(in, ourPrestart, ourPoststop)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(in, before) {
				t.Error("the input was written to")
			}
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			checkEdit(t, in, got)
		})
	}
}

// checkEdit checks an edit: the result is JSON, a second edit changes nothing, poststop begins with the hook, and without the
// hooks it equals the input.
func checkEdit(t *testing.T, in, out []byte) {
	t.Helper()
	if again, err := AddHooks(out, ourPrestart, ourPoststop); err != nil || !bytes.Equal(again, out) {
		t.Errorf("edited twice it is %s (%v)", again, err)
	}
	var was, is map[string]any
	if err := json.Unmarshal(in, &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &is); err != nil {
		t.Fatal(err)
	}
	delete(was, "hooks")
	delete(is, "hooks")
	if !reflect.DeepEqual(was, is) {
		t.Errorf("beside the hooks, something changed: %s", out)
	}
}

func TestAnInvalidConfigIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		``:                              "not JSON",
		`{`:                             "not JSON",
		`{} {}`:                         "not JSON",
		`[]`:                            "not a JSON object",
		`"hooks"`:                       "not a JSON object",
		`{"hooks":[]}`:                  "not a JSON object",
		`{"hooks":{"prestart":{}}}`:     "hooks.prestart: expected an array",
		`{"hooks":{"poststop":"x"}}`:    "hooks.poststop: expected an array",
		`{"hooks":{"poststop":[100]}}`:  "hooks.poststop: not a list of hooks",
		`{"hooks":{},"hooks":{}}`:       "more than once",
		`{"hooks":{},"HOOKS":{}}`:       "more than once",
		`{"Hooks":{}}`:                  "other letter case",
		`{"hooks":{"preStart":[]}}`:     "other letter case",
		`{"\u0068ooks":{},"hooks":{} }`: "more than once",
	} {
		if got, err := AddHooks([]byte(text), ourPrestart, ourPoststop); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %s, %v; want %q", text, got, err, says)
		}
	}
}

func FuzzAddHooks(f *testing.F) {
	f.Add([]byte(`{"hooks":{"prestart":[{"path":"/a"}],"poststop":[ {"timeout":1} ] },"x":1e9}`))
	f.Add([]byte(`{"hooks":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := AddHooks(in, ourPrestart, ourPoststop)
		if err != nil {
			return
		}
		var v map[string]any
		if json.Unmarshal(in, &v) != nil {
			return // a number outside the range of float64
		}
		checkEdit(t, in, out)
		var edited struct {
			Hooks struct{ Prestart, CreateRuntime, Poststop []json.RawMessage }
		}
		if err := json.Unmarshal(out, &edited); err != nil || len(edited.Hooks.Poststop) == 0 ||
			len(edited.Hooks.Prestart)+len(edited.Hooks.CreateRuntime) == 0 {
			t.Errorf("%s → %s: %v", in, out, err)
		}
	})
}

func TestReplaceKeepsModeAndOwner(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	if err := os.WriteFile(path, []byte("{}"), 0o640); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1234, 5678); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := os.Stat(path)
	f, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Replace([]byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	got, _ := os.Stat(path)
	a, b := want.Sys().(*syscall.Stat_t), got.Sys().(*syscall.Stat_t)
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Ino == b.Ino {
		t.Errorf("was %+v, is %+v", a, b)
	}
	if text, _ := os.ReadFile(path); string(text) != `{"a":1}` {
		t.Errorf("it holds %s", text)
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
}
