// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/daemon/config"
)

func TestUsageErrorIsPrintedOnce(t *testing.T) {
	for _, word := range []string{"start", "--no-such"} {
		var said bytes.Buffer
		err := run(t.Context(), []string{word}, io.Discard, &said)
		if !errors.Is(err, errUsage) || strings.Count(said.String(), strings.TrimLeft(word, "-")) != 1 {
			t.Errorf("%s: %v, %q", word, err, said.String())
		}
	}
}

func TestLimitsFollowTheCurrentFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	limits := limits(file, c)
	if n := len(limits()); n != 0 {
		t.Errorf("%d limits", n)
	}
	write("[[sessions.limits]]\nuser = \"a\"\nmax_vram = \"1G\"\n")
	for range 2 {
		if all := limits(); len(all) != 1 || all[0].User != "a" || all[0].MaxSessions != config.DefaultMaxSessions {
			t.Errorf("%+v", all)
		}
		write("[[sessions.li") // partly written
	}
}
