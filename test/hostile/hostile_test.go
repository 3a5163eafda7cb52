//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

// Bounds on the harm to others and its cost. The times are the promised ones, and the test prints the measured figures. A slow
// or loaded machine may take ten times as long.
const (
	slowest   = 100 * time.Millisecond // p99 of the operator's requests
	mostBytes = 64 << 20               // resident memory of the enforcer
	mostCPU   = 25                     // percent of a core
	mostLines = 100                    // of the log, per minute
	mostFiles = 256                    // open files that the actors leave in a daemon

	allowedTime = 10 * slowest
	allowedCPU  = 4 * mostCPU
)

func TestAHostileContainerAndAHostileUserHarmNoOther(t *testing.T) {
	if *only == "client" {
		t.Skip("they do not act")
	}
	h := newHost(t, "")
	good := h.newTenant()
	op := h.newOperator()
	var events follower
	following, stop := context.WithCancel(context.Background())
	defer stop()
	go events.follow(following, h)

	v := victims{Control: h.Socket(), Users: h.users(), Slices: h.Dir + "/run/slices", ID: good.id, Secret: h.secret,
		PIDs: []int{good.onHost, h.pid}, Programs: h.programs()}
	var all []*actor
	for _, as := range []string{"container", "user", "stranger", "subordinate", "neighbour"} {
		if *only == "" || slices.Contains(strings.Split(*only, ","), as) {
			all = append(all, h.begin(as, v))
		}
	}
	for _, a := range all {
		a.waitBegun(h)
	}

	before, said, begin := h.cost(), len(h.Log.String()), time.Now()
	working, rest := context.WithTimeout(context.Background(), *duration)
	defer rest()
	var both sync.WaitGroup
	both.Go(func() {
		expect.NoError(t, op.work(working), "the operator")
	})
	both.Go(func() {
		expect.NoError(t, good.work(working), "the well-behaved container")
	})
	both.Wait()
	after, log, took := h.cost(), withoutOperators(h.Log.String()[said:], h.secret), time.Since(begin)
	lines := strings.Count(log, "\n")

	for _, a := range all {
		a.report(h)
	}
	for what, l := range map[string]*latencies{"register": &op.register, "ps": &op.list, "scrape": &op.scrape} {
		t.Logf("the operator's %s: %v (promised: %v at p99)", what, l, slowest)
		if len(l.took) < 100 && *duration >= time.Minute {
			t.Errorf("the operator's %s was called only %d times, which shows nothing", what, len(l.took))
		}
		if quick := l.at(5); quick > allowedTime {
			t.Errorf("the operator's %s takes %v or longer 19 times of 20, want at most %v", what, quick, allowedTime)
		}
	}
	t.Logf("the well-behaved container was checked %d times, and refused %d times", good.looks, good.refusals)
	cpu := 100 * float64(after.cpu-before.cpu) / float64(took)
	perMinute := float64(lines) / max(took.Minutes(), 1) // a minute has its bound from its beginning
	t.Logf("the enforcer: %d MiB resident at most, %.1f%% of a core (promised: %d%%), %d lines in the log beside those of the operator's slices", after.peak>>20, cpu, mostCPU, lines)
	expect.True(t, after.peak <= mostBytes, "the enforcer had", after.peak, "bytes resident, want at most", mostBytes)
	if cpu > allowedCPU {
		t.Errorf("the enforcer took %.1f%% of a core, want at most %d%%", cpu, allowedCPU)
	}
	if perMinute > mostLines {
		t.Errorf("the enforcer wrote %.0f lines in a minute, want at most %d:\n%s", perMinute, mostLines, linesOf(log))
	}

	if n := h.descriptors(h.pid); n > mostFiles {
		t.Errorf("the enforcer has %d files open, want at most %d", n, mostFiles)
	}
	// The next checks count unreported refusals.
	var lacks []error
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		events.mu.Lock()
		lacks = events.told.lacks(op, good, map[string]uint64{string(api.EventRegistered): 1, string(api.EventReleased): 1})
		err := events.err
		events.mu.Unlock()
		if err != nil {
			lacks = append(lacks, err)
		}
		if len(lacks) == 0 || err != nil || time.Now().After(deadline) {
			break
		}
	}
	events.mu.Lock()
	t.Logf("%d events: %s", events.last, counts(events.all))
	events.mu.Unlock()
	report(t, "events", lacks)
	var size int64
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		written, n, err := h.audited()
		h.Must(err)
		lacks, size = written.lacks(op, good, map[string]uint64{
			"POST /v1/slices": 1, string(api.EventRegistered): 1, string(api.EventReleased): 1, "DELETE /v1/slices/{id}": 1}), n
		if n := written[""]["dropped"]; n > 0 {
			lacks = append(lacks, fmt.Errorf("%d entries are missing", n))
		}
		if len(lacks) == 0 || time.Now().After(deadline) {
			break
		}
	}
	t.Logf("the audit log has %d KiB", size>>10)
	report(t, "audit entries", lacks)

	h.Stop(unix.SIGKILL)
	h.Start()
	h.Eventually("the well-behaved container's charges are exact after a restart", func() bool { return good.look() == nil })
}

func counts(all map[api.EventKind]int) string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		words = append(words, fmt.Sprint(kind, " ", all[kind]))
	}
	return strings.Join(words, ", ")
}

func report(t *testing.T, what string, lacks []error) {
	for i, err := range lacks {
		if i == 10 {
			t.Errorf("%s: and %d more", what, len(lacks)-i)
			return
		}
		t.Errorf("%s: %v", what, err)
	}
}

// withoutOperators removes the lines of the operator's slices from a log.
func withoutOperators(log, secret string) string {
	var rest strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, secret) {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

func linesOf(log string) string {
	count := map[string]int{}
	for line := range strings.Lines(log) {
		_, message, _ := strings.Cut(line, "msg=")
		if i := strings.Index(message, "\" "); i > 0 {
			message = message[:i+1]
		}
		count[strings.TrimSpace(message)]++
	}
	var out []string
	for _, message := range slices.SortedFunc(maps.Keys(count), func(a, b string) int { return count[b] - count[a] }) {
		out = append(out, fmt.Sprintf("%6d %.200s", count[message], message))
	}
	return strings.Join(out[:min(len(out), 20)], "\n")
}
