//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/test/usage"
)

// startTimes compares how long pods take until their program runs: it writes when.
func startTimes(n *node) {
	n.template("vram", request("gpu", "2Gi"))
	times := make(map[string][]time.Duration)
	for i := range 20 {
		for kind, claims := range map[string][]string{"plain": nil, "claim": {"vram"}} {
			name := fmt.Sprint(kind, "-", i)
			begin := time.Now()
			n.create(n.pod(name, claims, container("a", []string{"/bin/date", "+%s.%N"}, claims...)))
			var at float64
			n.eventually("pod "+name+" has run", func() error {
				text, err := n.logs(name, "a")
				if err != nil || text == "" {
					return errors.Join(err, errors.New("no logs"))
				}
				at, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
				return err
			})
			times[kind] = append(times[kind], time.UnixMicro(int64(at*1e6)).Sub(begin))
			n.delete(name)
		}
	}
	median := func(kind string) time.Duration {
		slices.Sort(times[kind])
		return times[kind][len(times[kind])/2].Round(time.Millisecond)
	}
	plain, claim := median("plain"), median("claim")
	fmt.Printf("start of a pod, median of %d: plain %v, with a claim %v (%.2f)\n", len(times["plain"]), plain, claim, float64(claim)/float64(plain))
	if claim > 10*plain {
		n.t.Errorf("a pod with a claim takes %v to start, a plain one %v", claim, plain)
	}
}

// parts are those of a process's memory: its own, and of its program's file, which is the kernel's to take back.
var parts = regexp.MustCompile(`Rss(Anon|File):.*`)

// driverCosts: what it has in memory, and computes while nothing happens.
func driverCosts(n *node) {
	const watched = 20 * time.Second
	before := n.driverUses()
	time.Sleep(watched)
	after := n.driverUses()
	share, resident := float64(after.CPU-before.CPU)/float64(watched), after.Resident
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.driver.PID()))
	n.Must(err)
	fmt.Printf("the driver: %.1f MB resident (%s), idle %.2f %% of a core\n", float64(resident)/1e6,
		strings.Join(parts.FindAllString(string(text), -1), ", "), 100*share)
	if resident > 400e6 {
		n.t.Errorf("the driver has %d bytes in memory, want 40 MB, or 400 at most here", resident)
	}
	if share > 0.01 {
		n.t.Errorf("the driver takes %.2f %% of a core while it is idle, want 0.1, or 1 at most here", 100*share)
	}
}

func (n *node) driverUses() usage.Usage {
	n.t.Helper()
	u, err := usage.Of(n.driver.PID())
	n.Must(err)
	return u
}
