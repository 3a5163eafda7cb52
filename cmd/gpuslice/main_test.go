// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

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
