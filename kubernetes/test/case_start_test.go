//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/claim"
	"github.com/gpuslice/gpuslice/test/usage"
)

// stages lists the steps until a pod's program runs, in order. A plain pod has only those without a claim.
var stages = []struct {
	name  string
	claim bool
}{
	{"its claim is made (controller manager)", true},
	{"the claim is allocated (scheduler)", true},
	{"the pod is bound (scheduler)", false},
	{"the claim's pool is made (kubelet, gpuslice-dra)", true},
	{"the hook has a slice (kubelet, containerd, runc)", true},
	{"the program runs", false},
}

// startTimes compares the start times of pods with and without a claim. The program prints the time; the times of earlier stages
// come from watches of the API server and from the enforcer's events.
func startTimes(n *node) {
	n.template("vram", request("gpu", "2Gi"))
	times := make(map[string][]time.Duration) // by kind, and by stage and kind
	for i := range 20 {
		for kind, claims := range map[string][]string{"plain": nil, "claim": {"vram"}} {
			name := fmt.Sprint(kind, "-", i)
			seen := n.watch(name)
			last := time.Now()
			begin := last
			n.create(n.pod(name, claims, container("a", []string{"/bin/date", "+%s.%N"}, claims...)))
			var ran time.Time
			n.eventually("pod "+name+" has run", func() error {
				text, err := n.logs(name, "a")
				if err != nil || text == "" {
					return errors.Join(err, errors.New("no logs"))
				}
				at, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				ran = time.UnixMicro(int64(at * 1e6))
				return err
			})
			at := n.stages(seen(), name, kind == "claim")
			for i, s := range append(at, ran) {
				if !s.IsZero() {
					key := stages[i].name + kind
					times[key] = append(times[key], s.Sub(last))
					last = s
				}
			}
			times[kind] = append(times[kind], ran.Sub(begin))
		}
	}
	median := func(key string) time.Duration {
		slices.Sort(times[key])
		return times[key][len(times[key])/2].Round(100 * time.Microsecond)
	}
	plain, claimed := median("plain"), median("claim")
	fmt.Printf("start of a pod, median of %d: plain %v, with a claim %v (%.2f)\n", len(times["plain"]), plain, claimed, float64(claimed)/float64(plain))
	for _, s := range stages {
		before := "-"
		if !s.claim {
			before = median(s.name + "plain").String()
		}
		fmt.Printf("  %-50s plain %9s, with a claim %9v after the stage before\n", s.name, before, median(s.name+"claim"))
	}
	if claimed > 10*plain {
		n.t.Errorf("a pod with a claim takes %v to start, a plain one %v", claimed, plain)
	}
}

// sight holds the times at which a pod was bound, and its claim created and allocated.
type sight struct{ bound, made, allocated time.Time }

// watch watches a pod and its generated claim until seen is called.
func (n *node) watch(pod string) (seen func() sight) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	pods, err := n.kube.CoreV1().Pods(n.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	n.Must(err)
	claims, err := n.kube.ResourceV1().ResourceClaims(n.ns).Watch(ctx, metav1.ListOptions{})
	n.Must(err)
	var s sight
	var all sync.WaitGroup
	first := func(at *time.Time, is bool) {
		if is && at.IsZero() {
			*at = time.Now()
		}
	}
	all.Go(func() {
		for e := range pods.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				first(&s.bound, p.Spec.NodeName != "")
			}
		}
	})
	all.Go(func() {
		for e := range claims.ResultChan() {
			if c, ok := e.Object.(*resourceapi.ResourceClaim); ok && len(c.OwnerReferences) == 1 && c.OwnerReferences[0].Name == pod {
				first(&s.made, true)
				first(&s.allocated, c.Status.Allocation != nil)
			}
		}
	})
	return func() sight {
		cancel()
		all.Wait()
		return s
	}
}

// stages returns the times of a pod's stages before the last.
func (n *node) stages(s sight, pod string, claimed bool) []time.Time {
	n.t.Helper()
	at := []time.Time{s.made, s.allocated, s.bound, {}, {}}
	if !claimed {
		return at
	}
	c, err := n.claimOf(pod)
	n.Must(err)
	n.Must(n.Client.Events(context.Background(), "", 0, false, func(e api.Event) error {
		switch {
		case e.Kind == api.EventPoolCreated && e.Pool == claim.PoolName(c.UID, 0):
			at[3] = e.Time
		case e.Kind == api.EventRegistered && e.Namespace == n.ns && e.Pod == pod:
			at[4] = e.Time
		}
		return nil
	}))
	return at
}

// parts matches a process's anonymous memory and its file pages, which the kernel can reclaim.
var parts = regexp.MustCompile(`Rss(Anon|File):.*`)

// driverCosts measures the driver's resident memory and its CPU time while idle.
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
	if resident > 40e6 {
		n.t.Errorf("the driver has %d bytes in memory, want 40 MB at most", resident)
	}
	if share > 0.003 {
		n.t.Errorf("the driver takes %.2f %% of a core while it is idle, want 0.1, or 0.3 at most beside other work", 100*share)
	}
}

func (n *node) driverUses() usage.Usage {
	n.t.Helper()
	u, err := usage.Of(n.driver.PID())
	n.Must(err)
	return u
}
