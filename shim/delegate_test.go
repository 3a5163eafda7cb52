// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExitStatusIsTheRuntimes(t *testing.T) {
	r := &Runtime{Low: "/bin/sh", reports: true}
	for script, want := range map[string]int{"exit 0": 0, "exit 1": 1, "exit 77": 77, "exit 255": 255} {
		if got, err := r.Delegate([]string{"-c", script}, t.TempDir()); got != want || err != nil {
			t.Errorf("%s: status %d, %v, want %d", script, got, err, want)
		}
	}
	for _, signal := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGKILL, unix.SIGUSR1, unix.SIGTERM} {
		script := fmt.Sprintf("kill -%d $$", signal)
		if got, err := r.Delegate([]string{"-c", script}, t.TempDir()); got != 128+int(signal) || err != nil {
			t.Errorf("%s: status %d, %v, want %d", signal, got, err, 128+int(signal))
		}
	}
}

func TestARuntimeThatFailsHasTheHooksSentence(t *testing.T) {
	bundle := t.TempDir()
	report := filepath.Join(bundle, reportName)
	r := &Runtime{Low: "/bin/sh", reports: true}
	status, err := r.Delegate([]string{"-c", "echo 'gpuslice: no room' >" + report + "; exit 3"}, bundle)
	if status != 3 || err == nil || err.Error() != "no room" {
		t.Errorf("status %d, %v", status, err)
	}
	if _, err := os.Lstat(report); !os.IsNotExist(err) {
		t.Errorf("the report is left: %v", err)
	}
	r.Low = filepath.Join(bundle, "none")
	if status, err := r.Delegate(nil, bundle); status != 1 || err == nil {
		t.Errorf("without a runtime: status %d, %v", status, err)
	}
}
