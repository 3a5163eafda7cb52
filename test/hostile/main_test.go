//go:build hostile

// SPDX-License-Identifier: Apache-2.0

// Package hostile measures how attacks affect others. For a minute a container, a user and the user's namespace attack
// concurrently, beside a well-behaved container and an operator. For a quarter of that time a client of leases attacks
// beside another client.
//
// The attacker is this test's program, started again; container_actions_test.go, user_actions_test.go and
// client_actions_test.go list its actions. The test fails if an action runs too rarely. Daemon, hook, interceptor,
// containers and users are real; only the driver is simulated.
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
	duration = flag.Duration("duration", time.Minute, "act for this `long`")
	only     = flag.String("only", "", "let only these act: `names` from container,user,stranger,subordinate,neighbour,client, or nobody")
)

var machine = testhost.Stalls{Nap: 5 * time.Millisecond}

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
		"worker": "../faults/programs/worker.c", "crowd": "programs/crowd.c", "become": "programs/become.c", "sudo": "programs/sudo.c", "steady": "../e2e/programs/steady.c",
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
