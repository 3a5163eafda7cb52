// SPDX-License-Identifier: Apache-2.0

package table

import (
	"strconv"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"
)

// fruit is a listed row; several belong to one tree.
type fruit struct {
	Tree   string `json:"tree"`
	Colour string `json:"colour"`
	grams  uint64
}

var fruits = []fruit{{"apple", "red", 200}, {"pear", "", 30}, {"apple", "green", 1000}}

var trees = Table[fruit]{
	ID:     func(f fruit) string { return f.Tree },
	Object: func(f fruit) any { return map[string]string{"tree": f.Tree} },
	Columns: []Column[fruit]{
		{Head: "TREE", Field: "Tree", Text: func(f fruit) string { return f.Tree }, Short: func(f fruit) string { return f.Tree[:3] }},
		{Head: "COLOUR", Field: "Colour", Optional: true, Text: func(f fruit) string { return f.Colour }},
		{Head: "GRAMS", Field: "Grams", Number: func(f fruit) uint64 { return f.grams }, Text: func(f fruit) string { return strconv.FormatUint(f.grams, 10) },
			Alarm: func(f fruit) bool { return f.grams > 500 }},
		{Head: "SHOUT", Field: "Shout", Wide: true, Text: func(f fruit) string { return strings.ToUpper(f.Tree) }},
	},
	Filters: []Filter[fruit]{
		Is("tree", func(f fruit) string { return f.Tree }),
		OneOf("colour", func(f fruit) string { return f.Colour }, "red", "green"),
		If("heavy", func(f fruit) bool { return f.grams > 500 }),
	},
}

func print(t *testing.T, o Options, rows []fruit, colours termenv.Profile) string {
	t.Helper()
	printer, err := trees.Printer(o)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	var out strings.Builder
	if err := printer(&out, rows, colours); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return out.String()
}

func TestTheShapesOfAList(t *testing.T) {
	for want, o := range map[string]Options{
		"TREE  COLOUR  GRAMS\napp   red     200\npea   -       30\napp   green   1000\n":                                  {},
		"TREE   COLOUR  GRAMS\napple  red     200\npear   -       30\napple  green   1000\n":                              {Whole: true, Output: "table"},
		"TREE  COLOUR  GRAMS  SHOUT\napp   red     200    APPLE\npea   -       30     PEAR\napp   green   1000   APPLE\n": {Output: "wide"},
		"TREE  GRAMS\npea   30\n":                        {Filters: []string{"tree=pear"}, Format: "table"},
		"apple\npear\n":                                  {Quiet: true},
		"apple 200\npear 30\napple 1000\n":               {Format: "{{.Tree}} {{.Grams}}"},
		"apple\tRED\npear\t\napple\tGREEN\n":             {Format: `{{.Tree}}\t{{upper .Colour}}`},
		"TREE  GRAMS\napp   200\npea   30\napp   1000\n": {Format: `table {{.Tree}}\t{{.Grams}}`},
		"{\"tree\":\"apple\"}\n{\"tree\":\"pear\"}\n":    {Format: "json"},
		"\"200\"\n\"30\"\n\"1000\"\n":                    {Format: "{{json .Grams}}"},
		"[\n  {\n    \"tree\": \"apple\"\n  },\n  {\n    \"tree\": \"pear\"\n  }\n]\n": {Output: "json"},
		"- tree: apple\n- tree: pear\n": {Format: "yaml"},
		"1000\n200\n30\n":               {Format: "{{.Grams}}", Sort: "-grams"},
		"30\n200\n1000\n":               {Format: "{{.Grams}}", Sort: "Grams"},
		"200\n1000\n30\n":               {Format: "{{.Grams}}", Sort: "tree"},
		"200\n1000\n":                   {Format: "{{.Grams}}", Filters: []string{"colour=green", "colour=red"}},
		"1000\n":                        {Format: "{{.Grams}}", Filters: []string{"tree=apple", "heavy=true"}},
		"200\n30\n":                     {Format: "{{.Grams}}", Filters: []string{"heavy=false"}},
		"a-p\np-e\na-p\n":               {Format: `{{join (split (truncate .Tree 2) "") "-"}}`},
	} {
		if got := print(t, o, fruits, termenv.Ascii); got != want {
			t.Errorf("%+v: got\n%s\nwant\n%s", o, got, want)
		}
	}
	for output, want := range map[string]string{"json": "[]\n", "yaml": "[]\n", "": "TREE  GRAMS\n"} {
		if got := print(t, Options{Output: output}, nil, termenv.Ascii); got != want {
			t.Errorf("of nothing, %q: %q", output, got)
		}
	}
}

func TestAnInvalidFlagIsRefusedWithTheAcceptedValues(t *testing.T) {
	for want, o := range map[string]Options{
		`--filter "x=1": KEY=VALUE is accepted, with the keys tree, colour and heavy`:                                        {Filters: []string{"x=1"}},
		`--filter "tree": KEY=VALUE is accepted, with the keys tree, colour and heavy`:                                       {Filters: []string{"tree"}},
		`--filter "heavy=yes": of heavy true and false are accepted`:                                                         {Filters: []string{"heavy=yes"}},
		`--filter "colour=blue": of colour red and green are accepted`:                                                       {Filters: []string{"colour=blue"}},
		`--sort "size": tree, colour, grams and shout are accepted, with "-" before it for the largest first`:                {Sort: "size"},
		`--output "xml": table, wide, json and yaml are accepted`:                                                            {Output: "xml"},
		`--format: there is no field .Weight: Tree, Colour, Grams and Shout are accepted`:                                    {Format: "{{.Weight}}"},
		`--format and --quiet: one of them is accepted, as each says what is printed`:                                        {Format: "json", Quiet: true},
		`--format and --output: one of them is accepted, as each says what is printed`:                                       {Format: "json", Output: "yaml"},
		`--format: template: --format:1: unclosed action: a Go template such as {{.Tree}} is accepted, and json`:             {Format: "{{.Tree"},
		`--format: template: --format:1: function "frob" not defined: a Go template such as {{.Tree}} is accepted, and json`: {Format: "{{frob .Tree}}"},
	} {
		if _, err := trees.Printer(o); err == nil || err.Error() != want {
			t.Errorf("%+v: got\n%v\nwant\n%s", o, err, want)
		}
	}
	if _, err := trees.Line("table {{.Tree}}"); err == nil || !strings.Contains(err.Error(), "printed as they happen") {
		t.Error(err)
	}
}

func TestColoursTakeNoRoom(t *testing.T) {
	plain, coloured := print(t, Options{}, fruits, termenv.Ascii), print(t, Options{}, fruits, termenv.ANSI)
	if strings.ContainsRune(plain, '\x1b') || !strings.Contains(coloured, "\x1b[31m1000\x1b[0m") || strings.Contains(coloured, "\x1b[31m200") {
		t.Errorf("%q\n%q", plain, coloured)
	}
	if got := ansi.Strip(coloured); got != plain {
		t.Errorf("got\n%s\nwant\n%s", got, plain)
	}
}

func TestNamesOfStrangersMoveNoCursor(t *testing.T) {
	evil := []fruit{{Tree: "a\x1b[2J\nb\tc", Colour: "\u202egreen"}}
	for _, o := range []Options{{}, {Quiet: true}, {Output: "wide"}, {Format: "{{.Tree}} {{.Colour}}"}, {Format: `table {{.Tree}}\t{{.Colour}}`}} {
		if got := print(t, o, evil, termenv.Ascii); strings.ContainsAny(got, "\x1b\t\u202e") || strings.Count(got, "\n") > 2 {
			t.Errorf("%+v: %q", o, got)
		}
	}
}
