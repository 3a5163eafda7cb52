//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
)

// quantum and patience are configured; longestMove and ending follow from the enforcer's timeouts.
const (
	quantum  = 500 * time.Millisecond
	patience = time.Second
	// longestMove bounds the move of a small slice: 5 s for calls in progress, patience, and 30 s. Then the enforcer kills the slice's processes.
	longestMove = 5*time.Second + patience + 30*time.Second
	// ending is the time to end a slice after its move has failed: 10 s of grace after SIGTERM, and 2.6 s until its first process is killed.
	ending = 13 * time.Second
)

// rivalActions returns the actions of a user that keeps cards busy with elastic sessions.
func rivalActions(v victims) []action {
	u := newUser(v)
	return []action{
		{name: "attaches by hand to their elastic session and never counts calls, without end", atLeast: 500, do: u.floodOwnSession},
		{name: "asks for host memory for their elastic session, without end", atLeast: 100, do: u.requestHostMemory},
		{name: "stops a process of an elastic session, mostly in a call of the driver", atLeast: 1, do: u.stopInDriverCall},
		{name: "suspends a session, stops its process, and resumes it", atLeast: 1, pause: 2 * time.Second, do: u.suspendAndStop},
		{name: "begins elastic sessions of the highest priority", atLeast: 5, pause: time.Second, do: u.beginWithHighestPriority},
	}
}

// stopInDriverCall stops its own process during a driver call, and waits until the enforcer ends it, at most a minute.
func (u *user) stopInDriverCall() error {
	w, _, end, err := u.inSession(true)
	if err != nil {
		return err
	}
	defer end()
	said := make(chan string, 1)
	go func() { said <- w.ask("storm 7 1000000000 %d", 64*mib) }()
	time.Sleep(20 * time.Millisecond)
	_ = w.cmd.Process.Signal(unix.SIGSTOP)
	select {
	case <-said:
	case <-time.After(time.Minute): // no other session needed the room, or none gets it
	}
	return nil
}

// contenders are two elastic sessions of root on one card, which has room for one of them at a time.
type contenders struct {
	files []string
	steps latencies
}

func (h *host) newContenders(card int) *contenders {
	h.T.Helper()
	c := &contenders{}
	for i := range 2 {
		file := filepath.Join(h.Dir, "fake", fmt.Sprintf("steps-%d-%d", card, i))
		cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), "--socket", h.Socket(), "run", "--quiet", "--elastic", "--device", strconv.Itoa(card), "--vram", "2200M", "--",
			filepath.Join(h.programs(), "steady"), strconv.FormatUint(64*mib, 10), file)
		cmd.Env = append(h.Env(), h.cards...)
		cmd.Stdout, cmd.Stderr = h.T.Output(), h.T.Output()
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		h.Must(cmd.Start())
		h.T.Cleanup(func() {
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			_ = cmd.Wait()
		})
		c.files = append(c.files, file)
	}
	for _, file := range c.files {
		h.Eventually("an elastic session works", func() bool { return step(file) > 2 })
	}
	return c
}

func step(file string) uint64 {
	text, _ := os.ReadFile(file)
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// waitForStep returns once a session has made its next step.
func waitForStep(file string) error {
	before, deadline := step(file), time.Now().Add(longest)
	for step(file) == before {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s stood still for %v", file, longest)
		}
		pause(context.Background(), 2*time.Millisecond)
	}
	return nil
}

// watch measures the time between steps of both sessions until ctx ends.
func (c *contenders) watch(ctx context.Context) error {
	var mu sync.Mutex
	var all sync.WaitGroup
	errs := make([]error, len(c.files))
	for i, file := range c.files {
		all.Go(func() {
			for ctx.Err() == nil {
				var one latencies
				errs[i] = one.time(func() error { return waitForStep(file) })
				mu.Lock()
				c.steps.took, c.steps.stood = append(c.steps.took, one.took...), append(c.steps.stood, one.stood...)
				mu.Unlock()
				if errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func TestHostileElasticSessionDelaysStepsWithinBound(t *testing.T) {
	if *only != "" && !slices.Contains(strings.Split(*only, ","), "rival") {
		t.Skip("it does not act")
	}
	h := newHost(t, fmt.Sprintf("[elastic]\nmin_resident = \"200ms\"\nquantum = %q\npatience = %q\n", quantum, patience),
		"FAKECUDA_DEVICES=2", fmt.Sprint("FAKECUDA_MEMORY=", 2560*mib))
	h.lasts = *duration / 4
	var cards []*contenders
	for card := range 2 {
		cards = append(cards, h.newContenders(card))
	}
	watch := func() (worst []time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), h.lasts)
		defer cancel()
		var all sync.WaitGroup
		for _, c := range cards {
			c.steps = latencies{}
			all.Go(func() {
				expect.NoError(t, c.watch(ctx))
			})
		}
		all.Wait()
		for _, c := range cards {
			worst = append(worst, c.steps.at(100))
		}
		return worst
	}
	alone := watch()
	for i, c := range cards {
		t.Logf("card %d, steps of two elastic sessions in turns: %v", i, &c.steps)
	}
	rival := h.begin("rival", victims{Control: h.Socket(), Users: h.users(), Slices: h.Dir + "/run/slices", Secret: h.secret, Programs: h.programs()})
	rival.waitBegun(h)
	beside := watch()
	rival.report(h)
	for i, c := range cards {
		promised := alone[i] + quantum + longestMove + ending
		t.Logf("card %d, the same beside a hostile user: %v (expected: %v at most)", i, &c.steps, promised)
		if allowed := promised + 9*(alone[i]+quantum); beside[i] > allowed { // on a loaded machine up to nine turns are missed
			t.Errorf("a step took %v on card %d, %v without the hostile user: want at most %v", beside[i], i, alone[i], allowed)
		}
	}
}
