// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestCommandForSeveralIDsContinuesAfterAnError(t *testing.T) {
	var done []string
	var said strings.Builder
	app := &cli.App{ErrWriter: &said, Action: func(c *cli.Context) error {
		return forEachArgument(c, "it takes IDs", func(id string) error {
			done = append(done, id)
			if id == "b" || id == "c" {
				return errors.New("no slice " + id)
			}
			if id == "unreachable" {
				return errors.New("no enforcer")
			}
			return nil
		})
	}}
	err := app.Run([]string{"gpuslice", "a", "b", "c", "d"})
	if err == nil || err.Error() != "no slice c" || said.String() != "gpuslice: no slice b\n" {
		t.Errorf("error %v, printed %q", err, said.String())
	}
	expect.Equal(t, strings.Join(done, " "), "a b c d")
	said.Reset()
	if err := app.Run([]string{"gpuslice", "unreachable", "unreachable"}); err == nil || said.Len() > 0 {
		t.Errorf("of one error twice: %v, printed %q", err, said.String())
	}
	if err := app.Run([]string{"gpuslice"}); err == nil || !strings.Contains(err.Error(), "it takes IDs") {
		t.Errorf("without an ID: %v", err)
	}
}
