// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/lease/broker"
)

// TestMain runs the program in a process that a test starts: the program drops rights that its process cannot regain.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_BROKER") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestFlagsAreCheckedBeforeAnythingIsDone(t *testing.T) {
	const maxClients = broker.MaxClients
	for words, want := range map[string]string{
		"":                                     "",
		"--clients 1":                          "",
		"--clients 0":                          "--clients 0: 1 to",
		fmt.Sprint("--clients ", maxClients):   "",
		fmt.Sprint("--clients ", maxClients+1): fmt.Sprintf("1 to %d are accepted", maxClients),
		"--linger 0s --load-timeout 1ns":       "",
		"--linger -1ns":                        "--linger must not be negative",
		"--load-timeout 0s":                    "--load-timeout must be more than 0",
		"--vram 0":                             "a size such as 64M or 7G is accepted",
		"--shared -1M":                         "a size such as 64M or 7G is accepted",
		"again":                                `unexpected argument "again"`,
		"--directory= --reserve":               "--directory and --vram are needed",
		"--no-such-flag":                       "no-such-flag",
		"--reserve --device 1 --shared 512MiB": "",
	} {
		o, err := parse(append([]string{"--directory", "s", "--vram", "7G"}, strings.Fields(words)...))
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", words, err, want)
			}
			continue
		}
		if err != nil || !filepath.IsAbs(o.directory) || o.config.VRAM != 7<<30 {
			t.Errorf("%s: %+v, %v", words, o, err)
		}
	}
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
	kept, token := filepath.Join(dir, "kept"), filepath.Join(dir, "s", "token")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "s"), 0o700), os.WriteFile(kept, []byte("kept"), 0o600), os.Symlink(kept, token)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
			t.Errorf("the token is written through a link: %v, %q", err, text)
		}
	}()
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

func TestABrokerOutlivesTheReaderOfItsOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--service") // without a configuration, so that it writes why it ends
	cmd.Env = []string{"TEST_BROKER=1"}
	cmd.Stderr = w
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != broker.ExitUsage {
		t.Error(cmd.ProcessState)
	}
}
