// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestRecordsAreReadDefensively(t *testing.T) {
	good := func() record {
		return record{Version: recordVersion, Engine: "docker", Files: []recordFile{{
			Path: dockerFile, Format: formatJSON, Existed: true, Before: []byte("{}"), After: []byte("{}\n"), Keys: []ownKey{{Key: []string{"a"}}},
			Made: []string{"/etc/docker"},
		}}}
	}
	for _, c := range []struct {
		name   string
		change func(*record)
		want   string
	}{
		{"a later version", func(r *record) { r.Version = 2 }, "version 2 is not known"},
		{"another engine's", func(r *record) { r.Engine = "podman" }, `it is the record of engine "podman"`},
		{"a relative path", func(r *record) { r.Files[0].Path = "etc/x" }, "is no path"},
		{"a path with ..", func(r *record) { r.Files[0].Path = "/etc/../x" }, "is no path"},
		{"the root", func(r *record) { r.Files[0].Path = "/" }, "is no path"},
		{"a format", func(r *record) { r.Files[0].Format = "xml" }, `format "xml" is not known`},
		{"no keys", func(r *record) { r.Files[0].Keys = nil }, "has no keys"},
		{"an empty key", func(r *record) { r.Files[0].Keys[0].Key = nil }, "has an empty key"},
		{"a text of nothing", func(r *record) { r.Files[0].Existed = false }, "did not exist"},
		{"a directory elsewhere", func(r *record) { r.Files[0].Made = []string{"/home"} }, `"/home" is not above`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := good()
			c.change(&r)
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			refused(t, string(text), 0o600, c.want)
		})
	}
	text, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "{", 0o600, "unexpected EOF")
	refused(t, strings.Replace(string(text), "{", `{"more": 1, `, 1), 0o600, `unknown field "more"`)
	refused(t, string(text)+"{}", 0o600, "there is more after it")
	refused(t, string(text), 0o666, "can be written by others")

	w := newWorld(t)
	w.put(recordPath("docker"), string(text))
	if r, err := loadRecord(w.tree(), "docker"); err != nil || len(r.Files) != 1 {
		t.Errorf("a good one: %+v, %v", r, err)
	}
}

func refused(t *testing.T, text string, mode os.FileMode, want string) {
	t.Helper()
	w := newWorld(t)
	w.put(dockerFile, "{}\n")
	w.put(recordPath("docker"), text)
	if err := os.Chmod(w.Root+recordPath("docker"), mode); err != nil {
		t.Fatal(err)
	}
	for _, act := range []func(Host, string, Options) (Result, error){Install, Uninstall} {
		if _, err := act(w.Host, "docker", Options{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if w.get(dockerFile) != "{}\n" {
		t.Error("the configuration was changed")
	}
}

func FuzzRecord(f *testing.F) {
	w := record{Version: recordVersion, Engine: "docker", Files: []recordFile{{Path: "/etc/x", Format: formatTOML, After: []byte("a = 1\n"), Keys: []ownKey{{Key: []string{"a"}}}, Made: []string{"/etc"}}}}
	text, err := json.Marshal(w)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		w := newWorld(t)
		w.put(recordPath("docker"), string(text))
		r, err := loadRecord(w.tree(), "docker")
		if err != nil {
			return
		}
		if err := r.check("docker"); err != nil {
			t.Errorf("it is accepted: %v", err)
		}
	})
}

// A kill between record and file leaves a record of a change that was not made.
func TestARecordOfAChangeThatWasNotMadeIsHarmless(t *testing.T) {
	w := newWorld(t)
	w.put(dockerFile, "{}\n")
	w.install("docker", Options{})
	w.put(dockerFile, "{}\n")
	if r := w.install("docker", Options{}); r.State != Done {
		t.Errorf("installed again: %+v", r)
	}
	w.put(dockerFile, "{}\n")
	if r := w.uninstall("docker"); r.State != Nothing || w.get(dockerFile) != "{}\n" {
		t.Errorf("undone: %+v, %q", r, w.get(dockerFile))
	}

	w.install("docker", Options{})
	if err := os.Remove(w.Root + dockerFile); err != nil {
		t.Fatal(err)
	}
	if r := w.uninstall("docker"); r.State != Nothing || len(r.Notes) != 1 {
		t.Errorf("of a file that is gone: %+v", r)
	}
	if w.tree().exists(recordPath("docker")) {
		t.Error("the record is still there")
	}
}
