// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/hook/annotations"
	"github.com/gpuslice/gpuslice/shim/spec"
)

func TestArgumentsAreReadAsRuncAndCrunReadThem(t *testing.T) {
	for _, c := range []struct {
		line string
		want Args
	}{
		{"", Args{}},
		{"--version", Args{}},
		{"create c", Args{Verb: "create"}},
		{"--root /r --log /l --log-format json create --bundle /b --pid-file /p c", Args{Verb: "create", Bundle: "/b", Log: "/l"}},
		{"--root=/r --log=/l --systemd-cgroup run -b=/b -d c", Args{Verb: "run", Bundle: "/b", Log: "/l"}},
		{"-root /r -log /l restore -bundle /b --image-path create c", Args{Verb: "restore", Bundle: "/b", Log: "/l"}},
		{"--cgroup-manager systemd create -b/b c", Args{Verb: "create", Bundle: "/b"}},
		{"create --bundle /a --bundle /b c", Args{Verb: "create", Bundle: "/b"}},
		{"create --preserve-fds 3 --console-socket /s --no-pivot -b /b c", Args{Verb: "create", Bundle: "/b"}},
		{"create -- --bundle /b", Args{Verb: "create"}},
		{"--root create start c", Args{Verb: "start"}},
		{"--log /l exec c create --bundle /b", Args{Verb: "exec", Log: "/l"}},
		{"exec --process create c", Args{Verb: "exec"}},
		{"state create", Args{Verb: "state"}},
		// The container must get its quota in spite of an unknown flag with a value that is no verb.
		{"--future value create --bundle /b c", Args{Verb: "create", Bundle: "/b"}},
		{"--future create --bundle /b c", Args{Verb: "create", Bundle: "/b"}},
		{"create --config /x c", Args{Verb: "create", Config: "/x"}},
		{"create -f /x c", Args{Verb: "create", Config: "/x"}},
		{"create --bundle", Args{Verb: "create"}},
	} {
		if got := ParseArgs(strings.Fields(c.line)); got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.line, got, c.want)
		}
	}
}

func FuzzParseArgs(f *testing.F) {
	f.Add("--log /l create -b /b c")
	f.Fuzz(func(t *testing.T, line string) {
		if a := ParseArgs(strings.Split(line, " ")); a.Verb == "" && a.Creates() {
			t.Errorf("%+v", a)
		}
	})
}

func executableAt(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(name), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheRuntimeIsNeverItself(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	self := executableAt(t, ours, "gpuslice-runtime")
	if err := os.Symlink(self, filepath.Join(ours, "my-runc")); err != nil {
		t.Fatal(err)
	}
	real := executableAt(t, theirs, "my-runc")
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"my-runc"}, real},
		{[]string{self, "my-runc"}, real},
		{[]string{"nothing-of-that-name", real}, real},
		{[]string{self}, ""},
		{[]string{"nothing-of-that-name"}, ""},
	} {
		got, err := findRuntime(c.names, ours+":relative:"+theirs, self, filepath.Join(ours, "not-there"))
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v: %q, %v", c.names, got, err)
		}
	}
}

func TestTheHookBesideTheRuntimeIsPreferred(t *testing.T) {
	beside, inPath := t.TempDir(), t.TempDir()
	other := executableAt(t, inPath, "gpuslice-hook")
	if got := findHook(filepath.Join(beside, "gpuslice-runtime"), inPath); got != other {
		t.Errorf("in PATH: %q", got)
	}
	near := executableAt(t, beside, "gpuslice-hook")
	if got := findHook(filepath.Join(beside, "gpuslice-runtime"), inPath); got != near {
		t.Errorf("beside: %q", got)
	}
}

func TestTheShimEditsTheConfigThatItRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, spec.FileName)
	for want, texts := range map[string][2]string{ // the text that is read, and the text in the file afterwards
		"gpuslice.vram": {`{"root": {"path": "r"}, "annotations": {"gpuslice.vram": "1G"}}`, `{"root": {"path": "r"}}`},
		"left alone":    {`{"root": {"path": "r"}}`, `{"left alone": {}}`},
	} {
		if err := os.WriteFile(path, []byte(texts[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := spec.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(texts[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		r := Runtime{Policy: annotations.Policy{Pass: true}, HookPath: "/opt/" + spec.HookName}
		if err := r.Prepare(config); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), spec.HookName) != (want == "gpuslice.vram") {
			t.Errorf("%s: %s, %v", want, text, err)
		}
	}
}

func TestAnErrorIsOneLineOnStderrAndInTheLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("{\"level\":\"info\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	Report(errors.New("a \"b\"\nc\x1b[2J"), log, &stderr)
	if got := stderr.String(); got != "gpuslice: a \"b\"; c?[2J\n" {
		t.Errorf("stderr: %q", got)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); !strings.HasPrefix(got, "{\"level\":\"info\"}\n{\"level\":\"error\",\"msg\":\"gpuslice: a \\\"b\\\"; c?[2J\",\"time\":\"") ||
		strings.Count(got, "\n") != 2 {
		t.Errorf("log: %q", got)
	}
	Report(errors.New("x"), filepath.Join(log, "not", "there"), &stderr) // written to stderr at least
}
