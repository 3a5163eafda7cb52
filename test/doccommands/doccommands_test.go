// SPDX-License-Identifier: Apache-2.0

package doccommands

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestCommandsAreReadWithWhatTheyPrint(t *testing.T) {
	const text = "Say:\n```console host\n$ sudo a b     # why\nsays 1\n  # more\n# c\n```\n```toml\n# no command\n```\n```console\n$ d\n```\n    $ e\n"
	want := []Block{
		{File: "x.md", Line: 2, Mark: "host", Commands: []Command{{Text: "a b", Printed: []string{"says 1", "  # more"}}, {Text: "c"}}},
		{File: "x.md", Line: 11, Commands: []Command{{Text: "d"}}},
		{File: "x.md", Line: 14, Commands: []Command{{Text: "e"}}},
	}
	expect.True(t, reflect.DeepEqual(parse("x.md", text), want), "it is read as", parse("x.md", text))
}

func TestEveryCommandOfTheDocumentsSaysWhereItIsRun(t *testing.T) {
	blocks := must.Get(Read("../.."))(t)
	expect.True(t, len(blocks) >= 20, len(blocks), "fences were found")
	for _, b := range blocks {
		expect.True(t, slices.Contains(Marks, b.Mark), b, "has none of the marks", Marks)
		expect.Equal(t, b.Mark == "unrun", b.Why != "", b, "a fence that no test runs, and no other, says why: ```console unrun: WHY")
		if b.Mark == "unrun" && b.File == "README.md" {
			t.Errorf("%s: a test runs each command of README.md", b)
		}
		expect.True(t, len(b.Commands) > 0, b, "has no command")
	}
}

func TestDocumentedOutputIsComparedWithWhatVaries(t *testing.T) {
	acquire := Command{Text: "acquire", Printed: []string{"lease   lease-1", "expires in 2h"}}
	for said, want := range map[string]bool{"lease lease-77\nexpires  in 1h59m\n": true, "lease lease-77\nexpires at 1h59m": false, "lease lease-77": false, "": false,
		"lease x\nexpires in 1h": false} {
		var s Session
		if err := s.Compare(acquire, said); (err == nil) != want {
			t.Errorf("%q: %v", said, err)
		}
		if words := s.Words(Command{Text: "drop lease-1 2h"}); want && !slices.Equal(words, []string{"drop", "lease-77", "1h59m"}) {
			t.Errorf("%q", words)
		}
	}
}

// test/newcomer.sh types each command of the newcomer pages; every other block gives a reason.
func TestANewcomerTypesEachCommandThatCanRun(t *testing.T) {
	blocks := must.Get(Read("../.."))(t)
	pages := []string{"README.md", "docs/operate/engines.md", "docs/operate/install.md"}
	var want []string
	for _, b := range blocks {
		if strings.HasPrefix(b.File, "docs/use/") && !slices.Contains(pages, b.File) {
			pages = append(pages, b.File)
		}
		if !slices.Contains(pages, b.File) {
			continue
		}
		switch b.Mark {
		case "cluster", "playground", "unrun":
			want = append(want, b.String()+" why")
		default:
			for _, c := range b.Commands {
				want = append(want, b.String()+" "+c.Text)
			}
		}
	}
	awk := exec.Command("awk", append([]string{"-f", "test/newcomer/lines.awk"}, pages...)...)
	awk.Dir = "../.."
	out := must.Get(awk.Output())(t)
	var got []string
	for line := range strings.Lines(string(out)) {
		switch field := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); {
		case field[2] == "why":
			got = append(got, field[0]+" why")
		case field[1] != "toml":
			got = append(got, field[0]+" "+strings.TrimPrefix(field[3], "sudo "))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("typed are\n%s\nand the pages have\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
