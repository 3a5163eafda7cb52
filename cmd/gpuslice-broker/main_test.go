// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain runs the program in a process that a test starts: the program drops rights that its process cannot regain.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_BROKER") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestABrokerThatDoesNotStartLeavesNoSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "gs-") // t.TempDir may be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		// No host has so many devices, nor a driver for them.
		cmd := exec.Command(program, "--directory", filepath.Join(dir, "s"), "--vram", "64M", "--device", "4096")
		cmd.Env = []string{"TEST_BROKER=1"}
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Contains(string(out), "in use") || !strings.Contains(strings.ToLower(string(out)), "cuda") {
			t.Errorf("%v: %s", err, out)
		}
	}
}
