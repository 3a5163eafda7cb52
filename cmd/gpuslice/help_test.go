// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/enforcer/advice"
)

func TestHelpFitsATerminal(t *testing.T) {
	var try func(path []string, below []*cli.Command)
	try = func(path []string, below []*cli.Command) {
		out, said, code := cliRun(append(path[:len(path):len(path)], "--help")...)
		if code != 0 || out == "" || strings.Contains(out, "(default: false)") {
			t.Errorf("%q: %d, %s%s", path, code, out, said)
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > helpWidth {
				t.Errorf("%q: %d characters: %s", path, utf8.RuneCountInString(line), line)
			}
		}
		for _, c := range below {
			try(append(path[:len(path):len(path)], c.Name), c.Subcommands)
		}
	}
	try(nil, newApp().Commands)
}

func TestACommandThatTakesNothingRefusesArguments(t *testing.T) {
	tried := 0
	var try func(path []string, below []*cli.Command)
	try = func(path []string, below []*cli.Command) {
		for _, c := range below {
			path := append(path[:len(path):len(path)], c.Name)
			if try(path, c.Subcommands); len(c.Subcommands) > 0 || strings.TrimSpace(c.ArgsUsage) != "" || c.Name == "help" {
				continue
			}
			tried++
			want := strings.Join(path, " ") + " takes no argument"
			if out, said, code := cliRun(append(path, "surplus")...); code != exitUsage || out != "" || !strings.HasPrefix(said, want) || !strings.Contains(said, "surplus") {
				t.Errorf("%q: %d, %s%s", path, code, said, out)
			}
		}
	}
	if try(nil, newApp().Commands); tried < 9 {
		t.Errorf("%d commands were tried", tried)
	}
}

// The message names the socket, the reason and the remedy once each.
func TestAnUnreachableEnforcerIsReportedOnce(t *testing.T) {
	none := t.TempDir() + "/none"
	nobody := " does not answer on " + none + " (no such file or directory): "
	for args, want := range map[string]string{
		"--socket " + none + " ps":                            "the enforcer" + nobody + advice.Start("gpusliced"),
		"--socket " + none + " events --follow":               "the enforcer" + nobody + advice.Start("gpusliced"),
		"--socket " + none + " run --vram 1G -- true":         "the enforcer" + nobody + advice.Start("gpusliced"),
		"lease --lease-socket " + none + " acquire --vram 1G": "the lease service" + nobody + advice.Start("gpuslice-leased"),
		"lease --lease-socket " + none + " drop l-0123456789": "the lease service" + nobody + advice.Start("gpuslice-leased"),
	} {
		if _, said, code := cliRun(strings.Fields(args)...); code == 0 || said != want {
			t.Errorf("%s: %d\n%s\nis not\n%s", args, code, said, want)
		}
	}
}

// gslice names this flag --limit.
func TestEveryCommandThatTakesASizeTakesItAsALimitToo(t *testing.T) {
	tried := 0
	var try func(below []*cli.Command)
	try = func(below []*cli.Command) {
		for _, c := range below {
			try(c.Subcommands)
			for _, f := range c.Flags {
				if names := f.Names(); slices.Contains(names, "vram") {
					if tried++; !slices.Contains(names, "limit") {
						t.Errorf("%s has %q", c.Name, names)
					}
				}
			}
		}
	}
	if try(newApp().Commands); tried < 5 {
		t.Errorf("%d commands were tried", tried)
	}
}

func TestMisspeltCommandGetsASuggestion(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"devcies", `there is no command "devcies": did you mean devices?`},
		{"inspct x", "did you mean inspect?"},
		{"pool lst", `there is no command "pool lst": did you mean list?`},
		{"lease acqire", "did you mean acquire?"},
		{"frobnicate", "there is no command \"frobnicate\": `gpuslice --help` lists them"},
		{"kill x", "there is no command \"kill\": it is a verb of OCI runtimes, which `gpuslice-runtime kill` takes"},
		{"spec", "it is a verb of OCI runtimes"},
		{"list", "it is a verb of OCI runtimes"},
		{"update x", "it is a verb of OCI runtimes"},
		{"ps --formt json", "there is no flag --formt: did you mean --format? (see `gpuslice ps --help`)"},
		{"ps --no-trunk", "did you mean --no-trunc?"},
		{"set x --vrma 4G", "did you mean --vram?"},
		{"inspect x --jsn", "did you mean --json?"},
		{"set", "set takes one ID"},
		{"set x", "nothing to change: give"},
		{"set x --vram 500", `"500" has no unit: 500m was probably meant`},
		{"set x --vram much", `"much" is not a size`},
		{"set x --ttl 1h --device 0", "--device needs --vram"},
		{"set x --ttl soon", `--ttl: "soon" is not a time to live`},
		{"renew x 5", "is not a time to live"},
		{"renew x", "renew takes one ID and one DURATION"},
		{"pool create llm", "--vram is missing"},
		{"pool create llm --vram 40", `"40" has no unit: 40G or 40m was probably meant`},
		{"pool create llm --limit 40", `"40" has no unit: 40G or 40m was probably meant`},
		{"lease acquire --limit x", `--vram: "x" is not a size`},
		{"events --since yesterday", "--since"},
		{"ps -y", "there is no flag -y (see `gpuslice ps --help`)"},
		{"lease acquire --vram", "--vram needs a value (see `gpuslice lease acquire --help`)"},
		{"inspect x --filter", "there is no flag --filter"},
		{"set x --vram 4 G", `set takes one ID: ` + "`gpuslice ps`" + ` lists them; unexpected argument "G"`},
		{"--help frobnicate", "No help topic for 'frobnicate'"},
	} {
		if _, said, code := cliRun(strings.Fields(c.args)...); code != exitUsage || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d, %s", c.args, code, said)
		}
	}
	if _, said, code := cliRun("run", "--limt", "4G", "--", "true"); code != 125 || !strings.Contains(said, "did you mean --limit?") {
		t.Errorf("%d, %s", code, said)
	}
}
