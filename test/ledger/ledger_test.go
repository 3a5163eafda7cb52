// SPDX-License-Identifier: Apache-2.0

// Package ledger tests interceptor/ledger.c with real processes that die. It compiles and runs programs/, without cgo: the C
// code runs alone, as in the interceptor.
// GPUSLICE_LONG=1 extends the runs to minutes.
package ledger

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const interceptor = "../../interceptor"

func long() bool { return os.Getenv("GPUSLICE_LONG") == "1" }

func pick(short, thorough string) string {
	if long() {
		return thorough
	}
	return short
}

// compile compiles a program together with the ledger's code.
func compile(t *testing.T, compiler, name string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("requires %s", compiler)
	}
	program := filepath.Join(t.TempDir(), name)
	arguments := append([]string{
		"-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wvla", "-Werror",
		"-I" + interceptor, "-o", program, "programs/" + name + ".c", interceptor + "/ledger.c",
	}, flags...)
	if out, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler, strings.Join(arguments, " "), err, out)
	}
	return program
}

func run(t *testing.T, command ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.WaitDelay = time.Second // a child that holds the pipe dies with its parent
	out, err := c.CombinedOutput()
	t.Logf("%s\n%s", strings.Join(command, " "), out)
	if err != nil {
		t.Fatalf("%s: %v", filepath.Base(command[0]), err)
	}
}

func TestSIGKILLAtAnyInstructionKeepsTheSumsRight(t *testing.T) {
	run(t, compile(t, "gcc", "step"), pick("211", "101"))
}

func TestManyProcessesRaceForTheLastByte(t *testing.T) {
	program := compile(t, "gcc", "stress")
	for name, flags := range map[string][]string{"fixed limit": nil, "changing limit": {"-l"}} {
		t.Run(name, func(t *testing.T) {
			run(t, append([]string{program, "-n", "64", "-t", pick("2", "8")}, flags...)...)
		})
	}
}

func TestRaceIsCleanWithSanitizers(t *testing.T) {
	program := compile(t, "gcc", "stress", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	run(t, program, "-n", "8", "-t", pick("1", "5"), "-l")
}

func TestConcurrentCountsAreComplete(t *testing.T) {
	run(t, compile(t, "gcc", "count", "-pthread"))
	run(t, compile(t, "gcc", "count", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

func TestAChargeIsInBothLedgersOrInNone(t *testing.T) {
	run(t, compile(t, "gcc", "account", interceptor+"/charge.c"))
	run(t, compile(t, "gcc", "account", interceptor+"/charge.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

func TestProcessesOfTwoSlicesRaceForTheLastByteOfTheirPool(t *testing.T) {
	run(t, compile(t, "gcc", "pool", interceptor+"/charge.c"), "-n", "64", "-t", pick("2", "8"))
	run(t, compile(t, "gcc", "pool", interceptor+"/charge.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
		"-n", "8", "-t", pick("1", "5"))
}

func TestHostilePageHarmsNoOtherSlice(t *testing.T) {
	run(t, compile(t, "gcc", "hostile"), "-t", pick("1", "5"))
	run(t, compile(t, "gcc", "hostile", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
		"-t", pick("1", "5"))
}

func TestCostDoesNotGrowWithTheNumberOfProcesses(t *testing.T) {
	run(t, compile(t, "gcc", "flat")) // prints ratios and asserts none: they vary on a busy machine
}

// Covers the exclusive pairs of atomic128.h, which x86-64 does not use.
func TestRaceOnARM(t *testing.T) {
	const qemu = "qemu-aarch64-static"
	if _, err := exec.LookPath(qemu); err != nil {
		t.Skipf("requires %s", qemu)
	}
	program := compile(t, "aarch64-linux-gnu-gcc", "stress", "-static")
	run(t, qemu, program, "-n", "8", "-t", pick("2", "5"))
	run(t, qemu, program, "-n", "8", "-t", pick("1", "5"), "-l")
}
