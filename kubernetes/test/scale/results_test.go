//go:build scale

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

type results struct {
	Date       string `json:"date"`
	Machine    string `json:"machine"`
	Kubernetes string `json:"kubernetes"`
	Nodes      int    `json:"nodes"`
	Cards      int    `json:"cards"`
	Order      string `json:"order"`
	Strategy   string `json:"strategy"`
	Seed       uint64 `json:"seed"`
	Waiting    int    `json:"waiting"`

	Fill  part `json:"fill"`
	Churn part `json:"churn"`

	Over          int              `json:"over"`             // times that a card was overcommitted
	Most          float64          `json:"most"`             // maximum allocated fraction of a card
	WritesOfANode int              `json:"writes_of_a_node"` // maximum number of ResourceSlice writes within a minute
	Faults        int              `json:"faults"`
	Usage         map[string]usage `json:"usage"`
	Samples       []sample         `json:"samples"`
}

// part holds the results of one part of a run.
type part struct {
	Seconds   float64 `json:"seconds"`
	Bound     int     `json:"bound"` // pods
	Ended     int     `json:"ended"`
	PerSecond float64 `json:"per_second"` // pods bound per second
	Median    float64 `json:"median_ms"`  // from creation to binding of a pod
	P99       float64 `json:"p99_ms"`
	Writes    int     `json:"writes"` // of ResourceSlices
	Packing   packing `json:"packing"`
}

type sample struct {
	Seconds float64 `json:"seconds"`
	Bound   int     `json:"bound"`
	Writes  int     `json:"writes"`
	packing
}

type usage struct {
	CPU float64 `json:"cpu_seconds"`
	RSS float64 `json:"rss_mib"`
}

func (r *run) results() results {
	r.T.Helper()
	v, err := r.Client.Discovery().ServerVersion()
	r.must(err)
	return results{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Kubernetes: v.GitVersion,
		Nodes: *nodes, Cards: *nodes * cardsPerNode, Order: *order, Strategy: *strategy, Seed: *seed, Waiting: *waiting, Usage: make(map[string]usage),
	}
}

// machine describes the machine of the run.
func machine() string {
	model, memory := "unknown processor", 0
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(text), "model name\t: "); found {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		_, _ = fmt.Sscanf(string(text), "MemTotal: %d kB", &memory)
	}
	return fmt.Sprintf("%d CPUs of %s, %d GiB", runtime.NumCPU(), model, memory>>20)
}

func (r *run) part(do func(*rand.Rand)) (p part) {
	r.T.Helper()
	r.count(func(c *counts) { *c = counts{} })
	before, _ := r.slices.count()
	begin := time.Now()
	do(rand.New(rand.NewPCG(*seed, 1)))
	p.Seconds = time.Since(begin).Seconds()
	r.count(func(c *counts) {
		p.Bound, p.Ended, p.PerSecond = c.bound, c.ended, float64(c.bound)/p.Seconds
		p.Median, p.P99 = quantile(c.waits, 0.5), quantile(c.waits, 0.99)
		p.Packing = r.sums.packing(*nodes * cardsPerNode)
	})
	after, _ := r.slices.count()
	p.Writes = after - before
	return p
}

// sample takes samples until stop is called.
func (r *run) sample(begin time.Time, into *results) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		bound, last := 0, 0
		for {
			s := sample{Seconds: time.Since(begin).Seconds()}
			s.Writes, _ = r.slices.count()
			r.count(func(c *counts) {
				if c.bound < last { // the second part has begun
					bound, last = bound+last, 0
				}
				last = c.bound
				s.Bound, s.packing = bound+last, r.sums.packing(*nodes*cardsPerNode)
			})
			into.Samples = append(into.Samples, s)
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Second):
			}
		}
	}()
	return func() { close(ended); <-done }
}

// usage records the usage of the cluster's programs and of this process.
func (r *run) usage(into *results) {
	into.Usage["simulated nodes"] = used(os.Getpid())
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
		into.Usage[name] = used(r.Daemon(name).PID())
	}
}

func used(pid int) (u usage) {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		for _, field := range fields[11:13] { // utime and stime
			ticks, _ := strconv.ParseFloat(field, 64)
			u.CPU += ticks / 100
		}
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		if _, rest, found := strings.Cut(string(text), "VmHWM:"); found {
			var kib float64
			_, _ = fmt.Sscan(rest, &kib)
			u.RSS = kib / 1024
		}
	}
	return u
}
