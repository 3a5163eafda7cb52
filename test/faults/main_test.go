//go:build faults

// SPDX-License-Identifier: Apache-2.0

// Package faults runs thousands of random operations against all of gpuslice and injects faults among them. It
// compares the outcome with a model after every step. Daemon, hook, interceptor and processes are real; the driver and
// the runtime are simulated.
//
// A run is a series of rounds. Each round has its own host and a seed that determines its operations and faults:
// `test/faults/run.sh -seed N` repeats one. The kernel's scheduling is not repeatable: a request may complete just
// before the enforcer is killed, or not, which changes the choices that follow. Every few faults the round therefore
// removes all slices, so that the sequence is the same again.
package faults

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/testhost"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run only the round of this `seed`")
	firstFlag = flag.Uint64("first", 0, "start with the round of this `seed`, and count up; 0: a random one")
	duration  = flag.Duration("duration", 5*time.Minute, "start new rounds for this `long`")
	only      = flag.String("only", "", "inject only this `fault`, repeatedly; \"of leases\": all faults of leases")
	tableFile = flag.String("table", "", "write the table of results to this `file`")
)

var machine = testhost.Stalls{Nap: 50 * time.Millisecond}

var programs = map[string]string{}

// interrupted is closed when the suite is to stop: the current round then fails and cleans up.
var interrupted = make(chan struct{})

func TestMain(m *testing.M) {
	if address := os.Getenv(clientAddress); address != "" {
		os.Exit(leaseClient(address))
	}
	flag.Parse()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	go func() {
		<-signals
		close(interrupted)
	}()
	dir, err := compile()
	status := 1
	go machine.Watch()
	if err == nil {
		status = m.Run()
		err = results.finish(*tableFile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		status = 1
	}
	os.RemoveAll(dir)
	os.Exit(status)
}

func compile() (dir string, err error) {
	if os.Getuid() != 0 {
		return "", errors.New("needs root: containers, cgroups, mounts")
	}
	if dir, err = os.MkdirTemp("/tmp", "gsf-bin-"); err != nil {
		return "", err
	}
	if kernels, err = os.ReadFile("../lease/examples/kernels.ptx"); err != nil {
		return dir, err
	}
	for _, source := range []string{"programs/worker.c", "programs/enter.c", "programs/mislead.c", "../e2e/programs/steady.c"} {
		name := strings.TrimSuffix(filepath.Base(source), ".c")
		programs[name] = filepath.Join(dir, name)
		out, err := exec.Command("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I../../interceptor",
			"-o", programs[name], source, "-ldl").CombinedOutput()
		if err != nil {
			return dir, fmt.Errorf("compile %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
}

func TestFaultsExceedLoseAndLeakNothing(t *testing.T) {
	if *seedFlag != 0 {
		t.Run(fmt.Sprint("seed=", *seedFlag), func(t *testing.T) { round(t, *seedFlag) })
		return
	}
	first := *firstFlag
	if first == 0 {
		first = uint64(time.Now().UnixNano()) % 1e9
	}
	fmt.Printf("The first round has the seed %d; the others count up.\n", first)
	begin := time.Now()
	for i := uint64(0); i == 0 || time.Since(begin) < *duration; i++ {
		if !t.Run(fmt.Sprint("seed=", first+i), func(t *testing.T) { round(t, first+i) }) {
			return
		}
	}
}

func partition(list []fault) (ofLeases, others []fault) {
	for _, f := range list {
		if f.leases {
			ofLeases = append(ofLeases, f)
		} else {
			others = append(others, f)
		}
	}
	return ofLeases, others
}

// round runs every fault once on one host, in an order set by the seed, with operations between them.
func round(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	list := shuffled(w.random(), faults())
	if *only != "" {
		list = onlyNamed(*only)
	}
	for range operationsBefore {
		w.operate()
	}
	// Lease faults run in sequence on one lease service.
	ofLeases, others := partition(list)
	if n := w.random().IntN(len(others) + 1); len(ofLeases) > 0 {
		list = slices.Concat(others[:n:n], ofLeases, others[n:])
	}
	for i, f := range list {
		if f.leases && w.leased == nil {
			w.newLeased()
		} else if !f.leases && w.leased != nil {
			w.leased.finish()
		}
		// Slices survive several faults, so that faults also meet the state that earlier ones left.
		if w.step = 1000 * (i + 1); i%faultsTogether == 0 {
			w.dropAll()
			w.named = w.step
		}
		for range operationsBetween {
			w.operate()
		}
		w.inject(f)
	}
	if w.leased != nil {
		w.leased.finish()
	}
	w.end()
	results.addRound(w.steps, w.slowest)
}
