// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/test/doccommands"
)

var podmanRuntime = regexp.MustCompile(`podman .*--runtime[= ](\S+)`)

// The verbs and flags of commands in the documents exist. The commands are parsed and not run.
func TestCommandsOfTheDocumentsAreAccepted(t *testing.T) {
	blocks, err := doccommands.Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, b := range blocks {
		for _, c := range b.Commands {
			// Podman accepts the name of a configured runtime, or a path.
			if m := podmanRuntime.FindStringSubmatch(c.Text); m != nil && m[1] != "gpuslice" && !strings.HasPrefix(m[1], "/") {
				t.Errorf("%s: %s: Podman knows no runtime %s", b, c.Text, m[1])
			}
			command, _, _ := strings.Cut(c.Text, " | ")
			words := strings.Fields(command)
			if len(words) < 2 || words[0] != "gpuslice" {
				continue
			}
			tried++
			app := newApp()
			app.Writer, app.ErrWriter, app.Before = io.Discard, io.Discard, nil
			parseOnly(app.Commands)
			if err := app.Run(words); err != nil {
				t.Errorf("%s: %s: %v", b, command, err)
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d commands were found", tried)
	}
}

// parseOnly makes commands parse their arguments and do nothing.
func parseOnly(commands []*cli.Command) {
	for _, c := range commands {
		parseOnly(c.Subcommands)
		if len(c.Subcommands) > 0 {
			continue // the remaining word is no command
		}
		if c.Name == "run" {
			c.Action = func(*cli.Context) error { return nil }
			continue
		}
		c.Action = func(c *cli.Context) error {
			_, err := nonFlags(c)
			return err
		}
	}
}
