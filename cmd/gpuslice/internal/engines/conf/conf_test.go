// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"strings"
	"testing"
)

var (
	entry     = Table{{"type", "x"}, {"list", []string{"a.*"}}, {"options", Table{{"On", true}, {"Odd key", int64(1) << 62}}}}
	jsonEntry = Table{{"path", "/a/b"}, {"list", []string{"<a>"}}, {"on", true}}
	path      = []string{"plugins", "io.x.v1", "runtimes", "ours"}
	short     = []string{"runtimes", "ours"}
)

func becomes(t *testing.T, name, want string, edit func() ([]byte, error)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		if got, err := edit(); err != nil || string(got) != want {
			t.Fatalf("%v\n%s\nwant\n%s", err, got, want)
		}
	})
}

func TestTOMLEntryIsAddedAndTheRestKept(t *testing.T) {
	table := `[plugins."io.x.v1".runtimes.ours]
  type = "x"
  list = ["a.*"]
  [plugins."io.x.v1".runtimes.ours.options]
    On = true
    "Odd key" = 4611686018427387904
`
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", table},
		{"a comment", "# c\n", "# c\n\n" + table},
		{"no newline at the end", "a = 1 # c", "a = 1 # c\n\n" + table},
		{"CRLF", "a = 1\r\n", strings.ReplaceAll("a = 1\n\n"+table, "\n", "\r\n")},
		{"tables above", "[plugins.\"io.x.v1\".runtimes.other]\na=1\n", "[plugins.\"io.x.v1\".runtimes.other]\na=1\n\n" + table},
		{"quoted otherwise", "[plugins.'io.x.v1']\n", "[plugins.'io.x.v1']\n\n" + table},
		{"dotted keys above", "plugins.\"io.x.v1\".runtimes.other.a = 1\n", "plugins.\"io.x.v1\".runtimes.other.a = 1\n\n" + table},
		{"inline, empty", "plugins = {}\n", `plugins = { "io.x.v1" = { runtimes = { ours = { type = "x", list = ["a.*"], options = { On = true, "Odd key" = 4611686018427387904 } } } } }` + "\n"},
		{"inline below a header", "[plugins]\n'io.x.v1' = { runtimes = { other = { a = ['}'] } }, b = '#' } # }\n",
			"[plugins]\n'io.x.v1' = { runtimes = { other = { a = ['}'] }, ours = { type = \"x\", list = [\"a.*\"], options = { On = true, \"Odd key\" = 4611686018427387904 } } }, b = '#' } # }\n"},
		{"inline with dotted keys", "[plugins]\n'io.x.v1' = { runtimes.other.a = 1 }\n",
			"[plugins]\n'io.x.v1' = { runtimes.other.a = 1, runtimes.ours = { type = \"x\", list = [\"a.*\"], options = { On = true, \"Odd key\" = 4611686018427387904 } } }\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := TOML.Add([]byte(c.text), path, entry)
			if err != nil || string(got) != c.want {
				t.Fatalf("%v\n%s\nwant\n%s", err, got, c.want)
			}
			removed, err := TOML.Remove(got, path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(removed), "ours") {
				t.Errorf("it is still there:\n%s", removed)
			}
		})
	}
}

func TestTOMLEntryIsTakenOutOfAnEditedText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"between tables", "[a]\nx = 1\n\n[runtimes.ours]\n  # why\n  k = 1\n  [runtimes.ours.options]\n  o = 2\n\n# about b\n[b]\ny = 2\n", "[a]\nx = 1\n\n# about b\n[b]\ny = 2\n"},
		{"in two places", "[runtimes.ours]\nk = 1\n[b]\ny = 2\n[runtimes.ours.options]\no = 1\n", "[b]\ny = 2\n"},
		{"dotted", "[runtimes]\nours.k = 1 # c\nother.k = 1\nours.options.o = '''\n]\n'''\n", "[runtimes]\nother.k = 1\n"},
		{"inline", "runtimes = { a = {}, ours = { k = \"}\" }, b = {} }\n", "runtimes = { a = {}, b = {} }\n"},
		{"inline, the first", "runtimes = { ours = { k = 1 }, b = {} }\n", "runtimes = { b = {} }\n"},
		{"inline, alone", "runtimes = { ours = { k = 1 } }\n", "runtimes = {}\n"},
		{"inline, dotted", "runtimes = { ours.k = 1, ours.l = 2, a = 1 }\n", "runtimes = { a = 1 }\n"},
		{"a name that only begins like it", "[runtimes.ours2]\na = 1\n[runtimes.ours]\n", "[runtimes.ours2]\na = 1\n"},
	} {
		becomes(t, c.name, c.want, func() ([]byte, error) { return TOML.Remove([]byte(c.text), short) })
	}
}

func TestJSONEntryIsAddedAndTheRestKept(t *testing.T) {
	const object = `{
        "ours": {
            "path": "/a/b",
            "list": ["<a>"],
            "on": true
        }
    }`
	const line = `{"path": "/a/b", "list": ["<a>"], "on": true}`
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "{\n    \"runtimes\": " + object + "\n}\n"},
		{"white space", " \n\n", "{\n    \"runtimes\": " + object + "\n}\n"},
		{"an empty object", "{}", "{\n    \"runtimes\": " + object + "\n}"},
		{"members", "{\n    \"a\": 1\n}\n", "{\n    \"a\": 1,\n    \"runtimes\": " + object + "\n}\n"},
		{"tabs, CRLF", "{\r\n\t\"a\": 1\r\n}", strings.ReplaceAll("{\n\t\"a\": 1,\n\t\"runtimes\": {\n\t\t\"ours\": {\n\t\t\t\"path\": \"/a/b\",\n\t\t\t\"list\": [\"<a>\"],\n\t\t\t\"on\": true\n\t\t}\n\t}\n}", "\n", "\r\n")},
		{"one line", `{"a": 123456789012345678901234567890, "b":"\u003c}"}`, `{"a": 123456789012345678901234567890, "b":"\u003c}", "runtimes": {"ours": ` + line + `}}`},
		{"others, on one line", `{"runtimes": {"x": {}}, "b": 1}`, `{"runtimes": {"x": {}, "ours": ` + line + `}, "b": 1}`},
		{"others", "{\n  \"runtimes\": {\n    \"x\": {}\n  },\n  \"b\": 1\n}\n", "{\n  \"runtimes\": {\n    \"x\": {},\n    \"ours\": {\n      \"path\": \"/a/b\",\n      \"list\": [\"<a>\"],\n      \"on\": true\n    }\n  },\n  \"b\": 1\n}\n"},
		{"no others", "{\n    \"runtimes\": {}\n}\n", "{\n    \"runtimes\": " + object + "\n}\n"},
		{"byte order mark", "\xef\xbb\xbf{}", "\xef\xbb\xbf{\n    \"runtimes\": " + object + "\n}"},
	} {
		becomes(t, c.name, c.want, func() ([]byte, error) { return JSON.Add([]byte(c.text), short, jsonEntry) })
	}
}

func TestJSONEntryIsTakenOutOfAnEditedText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"last", "{\"runtimes\": {\n \"x\": 1,\n \"ours\": {}\n}}", "{\"runtimes\": {\n \"x\": 1\n}}"},
		{"first", "{\"runtimes\": {\n \"ours\": {},\n \"x\": 1\n}}", "{\"runtimes\": {\n \"x\": 1\n}}"},
		{"alone", "{\"runtimes\": {\n \"ours\": {}\n}, \"y\": 2}", "{\"runtimes\": {}, \"y\": 2}"},
	} {
		becomes(t, c.name, c.want, func() ([]byte, error) { return JSON.Remove([]byte(c.text), short) })
	}
}

func TestUnknownSyntaxIsRefusedWithItsLine(t *testing.T) {
	for _, c := range []struct {
		name   string
		format Format
		text   string
		want   string
	}{
		{"TOML", TOML, "a = 1\nb = \n", "line 2: "},
		{"TOML, a key twice", TOML, "a = 1\na = 2\n", "line 2: "},
		{"TOML, no table", TOML, "[runtimes]\nours = 1\n", "runtimes.ours is there already"},
		{"TOML, an array of tables", TOML, "[[runtimes]]\na = 1\n", "runtimes is there already"},
		{"JSON", JSON, "{\n \"a\": 1,\n}", "line 3: invalid character '}'"},
		{"JSON without end", JSON, "{\n \"a\": 1\n", "line 3: the object has no end"},
		{"JSON and more", JSON, "{}\n{}", "line 2: there is more after the object"},
		{"JSON, an array", JSON, "[]", "line 1: array is there, an object is expected"},
		{"JSON, null", JSON, "null", "an object is expected"},
		{"JSON, a key twice", JSON, "{\"runtimes\": {},\n \"runtimes\": {}}", "line 2: \"runtimes\" is there more than once"},
		{"JSON, other letter case", JSON, "{\"Runtimes\": {}}", "line 1: \"runtimes\" is there more than once, or in other letter case"},
		{"JSON, no object", JSON, "{\"runtimes\": null}", "\"runtimes\" is there already"},
		{"JSON in UTF-16", JSON, "\xff\xfe{\x00}\x00", "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.format.Add([]byte(c.text), short, jsonEntry)
			if err == nil {
				t.Fatalf("it was accepted:\n%s", got)
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q, want %q", err, c.want)
			}
		})
	}
}

// fuzzEdit checks that an entry is added or the edit rejected, that an added entry can be removed, and that nothing else changes.
// It counts the edits that fail their own verification; these have to be few.
func fuzzEdit(t *testing.T, f Format, text []byte, path []string, value any) {
	before, err := f.Decode(text)
	if err != nil {
		return
	}
	edited, err := f.Add(text, path, value)
	if err != nil {
		return
	}
	after, err := f.Decode(edited)
	if err != nil {
		t.Fatalf("%v in\n%q", err, edited)
	}
	want, err := with(before, path, plain(value))
	if err != nil || !Equal(after, want) {
		t.Fatalf("%v: it says\n%v\nwant\n%v", err, after, want)
	}
	removed, err := f.Remove(edited, path)
	if err != nil {
		t.Fatalf("it cannot be taken out: %v\n%q", err, edited)
	}
	got, err := f.Decode(removed)
	if err != nil || !Equal(without(got, path), without(before, path)) {
		t.Fatalf("%v: without it\n%v\nwas\n%v", err, got, before)
	}
}

func FuzzTOML(f *testing.F) {
	for _, text := range []string{
		"", "a = 1", "[a]\nb = '''\n[runtimes.ours]\n'''\n", "runtimes = { a.b = 1, c = [1, [2, {d = '}'}]] }\n", "a.\"b.c\".d = 1979-05-27 07:32:00 # x",
		"[[x]]\ny = \"\"\"\\\"\"\"\"\"\n[x.z]\n", "[runtimes.other]\n[runtimes]\nq = inf\n", "runtimes.x.y = nan\r\n", "'' = { \"\" = 1 }", "\xef\xbb\xbfa = 1",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { fuzzEdit(t, TOML, text, short, entry) })
}

func FuzzJSON(f *testing.F) {
	for _, text := range []string{
		"", "{}", "{\"a\": [1, {\"b\": \"}\\\"\"}]}", "{\n\t\"runtimes\": {\n\t\t\"x\": {}\n\t}\n}", "{ \"runtimes\" : { } }", "\xef\xbb\xbf{\"a\":1e400}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { fuzzEdit(t, JSON, text, short, jsonEntry) })
}

func TestAnEditLeavesItsInputUnchanged(t *testing.T) {
	text := []byte("runtimes = { a = 1, b = 2 }\n")
	kept := bytes.Clone(text)
	if _, err := TOML.Add(text, short, entry); err != nil {
		t.Fatal(err)
	}
	if _, err := TOML.Remove(text, []string{"runtimes", "a"}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, kept) {
		t.Errorf("it is now %q", text)
	}
}
