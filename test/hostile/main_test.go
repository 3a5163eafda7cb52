//go:build hostile

// SPDX-License-Identifier: Apache-2.0

// Package hostile has a container, a user and his user namespace do all the harm that they can think of, at once and for a
// minute, beside a well-behaved container and an operator, and measures what those notice of it. So does, for a quarter of that, a client of
// leases, beside another one.
//
// What is hostile is this test's program, started again: tables (container_actions_test.go, user_actions_test.go, client_actions_test.go) name all that it does.
// Each of them says how often an action came about, and the test fails where that is too seldom. The daemon, the hook, the
// interceptor, the containers and the users are real; only the driver is simulated.
package hostile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/testhost"
)

var (
	duration = flag.Duration("duration", time.Minute, "be hostile for so `long`")
	only     = flag.String("only", "", "of those that are hostile, let these alone act: `names` from container,user,stranger,subordinate,client, or nobody")
)

// machine is the one that this runs on.
var machine = testhost.Stalls{Nap: 5 * time.Millisecond}

// programs is the directory of what everybody here runs.
var programs string

func TestMain(m *testing.M) {
	if as := os.Getenv(asEnv); as != "" {
		if err := act(as); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	err := compile()
	status := 1
	if err == nil {
		go machine.Watch()
		status = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "hostile:", err)
	}
	os.RemoveAll(programs)
	os.Exit(status)
}

func compile() (err error) {
	if os.Getuid() != 0 {
		return errors.New("it makes containers, cgroups and users: run this as root")
	}
	if programs, err = os.MkdirTemp("/tmp", "gpuslice-hostile-"); err != nil {
		return err
	}
	for name, source := range map[string]string{
		"worker": "../faults/programs/worker.c", "crowd": "programs/crowd.c", "become": "programs/become.c", "sudo": "programs/sudo.c",
	} {
		out, err := exec.Command("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I../../interceptor",
			"-o", filepath.Join(programs, name), source, "-ldl").CombinedOutput()
		if err != nil {
			return fmt.Errorf("compile %s: %w\n%s", name, err, out)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(programs, "hostile"), text, 0o755), os.Chmod(programs, 0o755),
		os.Chmod(filepath.Join(programs, "sudo"), 0o755|os.ModeSetuid))
}
