//go:build scale

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
)

const (
	orderFullest = "fullest"
	orderPlain   = "plain"
)

var (
	nodes    = flag.Int("nodes", 10, "`NUMBER` of nodes, of 8 GPUs each")
	claims   = flag.Int("claims", 200, "`NUMBER` of pods with a claim that are there after the first part")
	limit    = flag.Duration("limit", 8*time.Minute, "`TIME` that the first part may take; what is not made then is not")
	waiting  = flag.Int("waiting", 100, "`NUMBER` of pods that wait at once, at most")
	rate     = flag.Float64("rate", 5, "`NUMBER` of pods that end each second of the second part, and of others that start")
	churn    = flag.Duration("churn", time.Minute, "`TIME` of the second part")
	order    = flag.String("order", orderFullest, "`ORDER` of a node's devices: fullest first as the driver has it, or plain")
	strategy = flag.String("strategy", "LeastAllocated", "the scheduler's `STRATEGY` of scoring nodes: LeastAllocated, its default, or MostAllocated")
	seed     = flag.Uint64("seed", 1, "`SEED` of the claims' sizes and of the pods that end")
	out      = flag.String("out", "", "`FILE` for the results, as JSON; below the directory of this package, unless its path begins with /")
)

type run struct {
	*cluster.Cluster
	ctx        context.Context
	background sync.WaitGroup
	nodes      map[string]*node
	slices     written
	pods       pods

	mu     sync.Mutex // protects the fields below
	sums   *cardSums
	counts counts
	faults []string
}

type counts struct {
	waiting, bound, ended int
	waits                 []time.Duration // from creation to binding of a pod
}

func (r *run) count(f func(*counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.counts)
}

// fault records a violation. The run continues and fails at its end.
func (r *run) fault(format string, args ...any) {
	if r.ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *run) must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

func (r *run) eventually(what string, limit time.Duration, is func() error) {
	r.T.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.T.Fatalf("it is still not so that %s: %v", what, err)
		}
	}
}

// each calls do for all elements, up to at of them concurrently.
func each[T any](all []T, at int, do func(T)) {
	var group sync.WaitGroup
	turns := make(chan struct{}, at)
	for _, one := range all {
		turns <- struct{}{}
		group.Go(func() { do(one); <-turns })
	}
	group.Wait()
}

// schedulerConfig writes the scheduler's default configuration with another scoring of nodes and more API calls.
func schedulerConfig(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "scheduler.yaml")
	text := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s/admin.kubeconfig, qps: 1000, burst: 2000}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: %s, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}
`, dir, *strategy)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestNoCardIsOvercommittedAtScale(t *testing.T) {
	if *order != orderFullest && *order != orderPlain {
		t.Fatalf("order %q is not accepted: %q and %q are", *order, orderFullest, orderPlain)
	}
	klog.LogToStderr(false)
	dir, err := os.MkdirTemp("/tmp", "gpuslice-scale-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &run{
		Cluster: cluster.Start(t, cluster.Options{
			Dir: dir, Controlled: true, Scheduler: []string{"--config=" + schedulerConfig(t, dir)},
			Controller: []string{"--kube-api-qps=1000", "--kube-api-burst=2000"},
		}),
		sums: newCardSums(), slices: written{of: make(map[string][]time.Time)}, pods: pods{all: make(map[string]*pod)},
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	defer r.background.Wait()
	defer cancel()
	if said, err := r.Kubectl("", "apply", "-f", "../../deploy/base/deviceclass.yaml"); err != nil {
		t.Fatal(said, err)
	}
	r.watchClaims()
	r.watchSlices()
	begin := time.Now()
	r.addNodes()
	t.Logf("%d nodes have published after %.1f s", *nodes, time.Since(begin).Seconds())
	r.addTemplates()
	r.watchPods()

	results := r.results()
	sampled := r.sample(begin, &results)
	results.Fill = r.part(r.fill)
	t.Logf("filled: %+v", results.Fill)
	results.Churn = r.part(r.churn)
	t.Logf("churned: %+v", results.Churn)
	sampled()
	r.compareWithAList()
	r.usage(&results)

	r.mu.Lock()
	results.Over, results.Most, results.Faults = len(r.sums.overcommits), float64(r.sums.most)/cardBytes, len(r.faults)
	for _, fault := range r.faults[:min(len(r.faults), 10)] {
		t.Error(fault)
	}
	for _, over := range r.sums.overcommits {
		t.Error(over)
	}
	r.mu.Unlock()
	results.WritesOfANode = r.slices.mostOfANode()
	if results.WritesOfANode > 13 { // twelve, and one received early
		t.Errorf("a node wrote its ResourceSlice %d times within a minute: at most 12 are promised", results.WritesOfANode)
	}
	text, err := json.MarshalIndent(results, "", " ")
	r.must(err)
	if *out != "" {
		r.must(os.WriteFile(*out, append(text, '\n'), 0o644))
	} else {
		t.Logf("%s", text)
	}
}

// fill creates the wanted number of pods. Some always wait, to keep the scheduler busy.
func (r *run) fill(chance *rand.Rand) {
	deadline := time.Now().Add(*limit)
	for made := 0; made < *claims && time.Now().Before(deadline); {
		if r.waiting() >= *waiting {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		r.create(chance)
		made++
	}
	r.allBound()
}

// churn ends pods and starts others at a constant rate.
func (r *run) churn(chance *rand.Rand) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / *rate))
	defer tick.Stop()
	for end := time.Now().Add(*churn); time.Now().Before(end); <-tick.C {
		if r.waiting() < *waiting && r.end(chance) {
			r.create(chance)
		}
	}
	r.allBound()
}

func (r *run) waiting() (n int) {
	r.count(func(c *counts) { n = c.waiting })
	return n
}

func (r *run) allBound() {
	r.T.Helper()
	r.eventually("all pods are bound", 2*time.Minute, func() error {
		if n := r.waiting(); n > 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
}

// watchEach calls each for every change from version on, in order.
func (r *run) watchEach(version string, from cache.WatchFuncWithContext, each func(watch.Event)) {
	r.T.Helper()
	w, err := toolswatch.NewRetryWatcherWithContext(r.ctx, version, &cache.ListWatch{WatchFuncWithContext: from})
	r.must(err)
	r.background.Go(func() {
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				r.fault("changes are missing: %v", event.Object)
				return
			}
			each(event)
		}
	})
}

func (r *run) watchClaims() {
	r.T.Helper()
	all := r.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll)
	list, err := all.List(r.ctx, metav1.ListOptions{})
	r.must(err)
	r.watchEach(list.ResourceVersion, all.Watch, func(event watch.Event) {
		claim, ok := event.Object.(*resourceapi.ResourceClaim)
		if !ok {
			return
		}
		has := allocated(claim)
		if event.Type == watch.Deleted {
			has = nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sums.set(string(claim.UID), claim.ResourceVersion, has)
	})
}

func (r *run) watchSlices() {
	r.T.Helper()
	all := r.Client.ResourceV1().ResourceSlices()
	list, err := all.List(r.ctx, metav1.ListOptions{})
	r.must(err)
	r.watchEach(list.ResourceVersion, all.Watch, func(event watch.Event) {
		if s, ok := event.Object.(*resourceapi.ResourceSlice); ok {
			r.slices.record(s.Spec.Pool.Name)
		}
	})
}

// compareWithAList compares the sums with those of a list from the API server once neither changes.
func (r *run) compareWithAList() {
	r.T.Helper()
	r.eventually("the sums equal those of the API server's list", time.Minute, func() error {
		list, err := r.Client.ResourceV1().ResourceClaims(namespace).List(r.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		again := newCardSums()
		for i := range list.Items {
			again.set(string(list.Items[i].UID), "", allocated(&list.Items[i]))
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if a, b := again.packing(1), r.sums.packing(1); a != b {
			return fmt.Errorf("listed %+v, added up %+v", a, b)
		}
		return nil
	})
}

func quantile(waits []time.Duration, q float64) float64 {
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	return float64(waits[min(len(waits)-1, int(q*float64(len(waits))))]) / float64(time.Millisecond)
}
