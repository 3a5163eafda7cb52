// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
)

func TestUsageErrorNamesWhatIsAccepted(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ps", "a1"}, 2, "`gpuslice inspect a1` shows one slice"},
		{[]string{"run", "--join", "", "--", "true"}, 125, `--join "": give a file with a session's token`},
		{[]string{"--token", "", "ps"}, 2, `--token "": give a file with a session's token`},
		{[]string{"run", "--vram", "1G", "--name", "ä b", "--", "true"}, 125, `has 'ä'`},
		{[]string{"run", "--vram", "1G", "--ttl", "999999999h", "--", "true"}, 125, "from 1s to 876000h"},
		{[]string{"--socket", "/nonexistent/control", "run", "--vram", "1G", "--", "true"}, 125, "/nonexistent/control"},
		{[]string{"set", "--vram", "1G", "--device", "all", "--drop", "0", "a1"}, 2, "no --drop can be given"},
		{[]string{"run", "--vram", "1G", "--wait", "soon", "--", "true"}, 125, `--wait "soon": a duration such as "30s", "10m" or "2h" is accepted, or forever`},
		{[]string{"run", "--vram", "1G", "--wait", "0s", "--", "true"}, 125, `--wait "0s": a duration`},
		{[]string{"run", "--vram", "1G", "--wait=", "--", "true"}, 125, `--wait "": a duration`},
		{[]string{"renew", "a1", "0.5s"}, 2, "from 1s to 876000h"},
	} {
		if _, said, code := cliRun(c.args...); code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%q: %d, %s", c.args, code, said)
		}
	}
	for _, command := range []string{"run", "set", "renew"} {
		if help, _, _ := cliRun(command, "--help"); !strings.Contains(strings.Join(strings.Fields(help), " "), "never, or 0, for no end") {
			t.Errorf("%s: %s", command, help)
		}
	}
}

func TestAWrongFlagIsOneSentenceThatNamesTheHelpOfItsCommand(t *testing.T) {
	var try func(path []string, below []*cli.Command)
	try = func(path []string, below []*cli.Command) {
		app := newApp()
		app.Writer, app.ErrWriter = io.Discard, io.Discard
		help := "(see `" + strings.Join(path, " ") + " --help`)"
		if err := app.Run(append(path[:len(path):len(path)], "--no-such-flag")); err == nil || !strings.HasSuffix(err.Error(), help) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: want %s", err, help)
		}
		for _, c := range below {
			try(append(path[:len(path):len(path)], c.Name), c.Subcommands)
		}
	}
	try([]string{"gpuslice"}, newApp().Commands)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestSessionWithoutTheHostsEnforcerIsReportedOrRefused(t *testing.T) {
	t.Setenv("GPUSLICE_SOCKET", "")
	if os.Unsetenv("GPUSLICE_SOCKET"); exists(api.DefaultSocket) {
		t.Skip("this host has an enforcer")
	}
	socket := t.TempDir() + "/none"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--session-socket", socket, "run", "--require-host", "--vram", "1G", "--", "true"}, "--require-host: the enforcer does not answer on "},
		{[]string{"run", "--require-host", "--embedded", "--vram", "1G", "--", "true"}, "leave one of them out"},
	} {
		if _, said, code := cliRun(c.args...); code != 125 || !strings.Contains(said, c.want) {
			t.Errorf("%q: %d, %s", c.args, code, said)
		}
	}
}
