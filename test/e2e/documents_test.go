// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// The card is simulated; `python` is a script that queries the driver.
func TestCommandsOfTheDocumentsPrintWhatTheyShow(t *testing.T) {
	h := newLeaseHost(t)
	programs := t.TempDir()
	h.Must(os.WriteFile(filepath.Join(programs, "python"), []byte("#!/bin/sh\nexec \"$BIN\"/demo/cuda_hog 0 >&2\n"), 0o755))
	blocks := must.Get(doccommands.Read("../.."))(h.T)
	tried := 0
	for _, b := range blocks {
		if b.Mark != "host" {
			continue
		}
		var s doccommands.Session
		for _, c := range b.Commands {
			cmd := exec.Command("/bin/bash", "-euc", strings.Join(s.Words(c), " "))
			cmd.Env = append(h.Env(), "GPUSLICE_SOCKET="+h.Host.Socket(), "GPUSLICE_SESSION_SOCKET="+filepath.Join(h.Dir, "run", "session.sock"),
				"GPUSLICE_LEASE_SOCKET="+h.Service.Socket, "BIN="+h.Bin, "PATH="+programs+":"+h.Bin+":"+os.Getenv("PATH"))
			tried++
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%s: %v\n%s", b, err, stderrOf(err))
				break
			}
			if len(c.Printed) == 0 {
				continue
			}
			expect.NoError(t, s.Compare(c, strings.ReplaceAll(string(out), " (simulated)", "")), b)
		}
	}
	expect.True(t, tried >= 5, tried, "commands were tried")
}

func stderrOf(err error) string {
	if exit, ok := err.(*exec.ExitError); ok {
		return string(exit.Stderr)
	}
	return ""
}
