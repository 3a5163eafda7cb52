//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// killedInPrepare kills the driver while it prepares a claim and waits for gpusliced.
func killedInPrepare(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.WhileStopped(func() {
		n.create(n.pod("late", []string{"vram"}, container("a", sleep, "vram")))
		n.eventually("the kubelet asks the driver to prepare the claim", func() error {
			for line := range strings.Lines(n.kubelet.Log.String()) {
				if strings.Contains(line, "Calling NodePrepareResources rpc") && strings.Contains(line, n.ns) {
					return nil
				}
			}
			return errors.New("it has not")
		})
		n.driver.Stop(unix.SIGKILL)
	})
	n.driver.Start()
	n.running("late")
	n.sees("late", "a", 4*gib)
}

// enforcerAway: new pods wait and running ones stay, since the devices are tainted.
func enforcerAway(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("stays", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("stays", "a", holds(2*gib, 4*gib))
	n.health("stays", corev1.ResourceHealthStatusHealthy)
	n.Stop(unix.SIGKILL)
	n.tainted(inventory.TaintUnreachable)
	n.create(n.pod("waits", []string{"vram"}, container("a", sleep, "vram")))
	n.told("waits", "cannot allocate all claims")
	// The kubelet waits for half a minute: enough for a controller that would delete the running pod.
	n.health("stays", corev1.ResourceHealthStatusUnknown)
	if p, err := n.getPod("stays"); err != nil || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
		n.t.Errorf("the pod that ran: %+v, %v", p.Status, err)
	}
	n.Start()
	n.tainted("")
	n.health("stays", corev1.ResourceHealthStatusHealthy)
	n.running("waits")
	n.sees("waits", "a", 4*gib)
	n.refused("stays", "a", 2*gib)
}

// lostCard: NVML fails with NVML_ERROR_GPU_IS_LOST.
func lostCard(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("stays", []string{"vram"}, container("a", sleep, "vram")))
	n.write(nvmlFault, "fail")
	defer os.Remove(nvmlFault)
	n.tainted(inventory.TaintUnhealthy)
	n.health("stays", corev1.ResourceHealthStatusUnhealthy)
	n.create(n.pod("waits", []string{"vram"}, container("a", sleep, "vram")))
	n.told("waits", "cannot allocate all claims")
	n.running("stays")
	n.Must(os.Remove(nvmlFault))
	n.running("waits")
	n.tainted("")
	n.sees("waits", "a", 4*gib)
}

// tainted waits until all devices have the NoSchedule taint with that key, or none if it is "".
func (n *node) tainted(key string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the devices have the taint %q", key), func() error {
		published := n.resourceSlices()
		if len(published) != 1 {
			return fmt.Errorf("%d ResourceSlices", len(published))
		}
		for _, d := range published[0].Spec.Devices {
			if is := len(d.Taints) == 1 && d.Taints[0].Key == key && d.Taints[0].Effect == "NoSchedule"; !is && (key != "" || len(d.Taints) > 0) {
				return fmt.Errorf("%s has %v", d.Name, d.Taints)
			}
		}
		return nil
	})
}

// deletedByForce: while the kubelet is down the scheduler allocates memory that a deleted pod still uses.
func deletedByForce(n *node) {
	n.template("vram", request("gpu", "60Gi"))
	for _, name := range []string{"other", "gone"} {
		n.start(n.pod(name, []string{"vram"}, container("a", hog(50*gib), "vram")))
		n.wrote(name, "a", holds(50*gib, 60*gib))
	}
	n.kubelet.Stop(unix.SIGKILL)
	n.Must(n.kube.CoreV1().Pods(n.ns).Delete(context.Background(), "gone", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	n.create(n.pod("next", []string{"vram"}, container("a", hog(50*gib), "vram")))
	n.eventually("the scheduler has allocated twice", func() error {
		p, err := n.getPod("next")
		if err == nil && p.Spec.NodeName == "" {
			err = errors.New("not scheduled")
		}
		return err
	})
	n.kubelet.Start()
	n.running("next")
	n.wrote("next", "a", holds(50*gib, 60*gib))
}

// drained: pods leave with `kubectl drain` and return after `kubectl uncordon`.
func drained(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("leaves", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("leaves", "a", holds(2*gib, 4*gib))
	_, err := n.plane.Kubectl("", "drain", nodeName, "--force", "--timeout=1m")
	n.Must(err)
	n.eventually("the node has nothing of claims", n.left)
	n.create(n.pod("comes", []string{"vram"}, container("a", sleep, "vram")))
	n.told("comes", "node(s) were unschedulable")
	_, err = n.plane.Kubectl("", "uncordon", nodeName)
	n.Must(err)
	n.running("comes")
	n.sees("comes", "a", 4*gib)
}

// outsideComes: the scheduler allocates the second half of a card while a program outside slices takes it.
func outsideComes(n *node) {
	half := n.memory() / 2 / mib * mib
	_, err := n.plane.Kubectl(fmt.Sprintf(templates, "half", fmt.Sprint(half), `'device.attributes["gpuslice.io"].index == 0'`), "--namespace="+n.ns, "apply", "-f", "-")
	n.Must(err)
	n.start(n.pod("first", []string{"half"}, container("a", hog(gib), "half")))
	refused, written := n.counted(`gpuslice_dra_prepare_seconds_count{refused="true"}`), n.counted("gpuslice_dra_slices_written_total")
	n.Must(unix.Kill(n.driver.PID(), unix.SIGSTOP)) // what is published stays as it is
	continues := sync.OnceFunc(func() { n.Must(unix.Kill(n.driver.PID(), unix.SIGCONT)) })
	defer continues()
	outside := exec.Command(filepath.Join(n.Bin, "demo/cuda_hog"), fmt.Sprint(half))
	outside.Env = n.Env()
	n.Must(outside.Start())
	end := sync.OnceFunc(func() {
		_ = outside.Process.Kill()
		_ = outside.Wait()
	})
	defer end()
	n.eventually("the program has taken the memory", func() error {
		d, err := n.Client.Devices(context.Background())
		if err == nil && d[0].OutsideUsed < half {
			err = fmt.Errorf("%d bytes", d[0].OutsideUsed)
		}
		return err
	})
	n.create(n.pod("second", []string{"half"}, container("a", hog(gib), "half")))
	n.eventually("the scheduler has allocated it", func() error {
		p, err := n.getPod("second")
		if err == nil && p.Spec.NodeName == "" {
			err = errors.New(n.events("second"))
		}
		return err
	})
	continues()
	begin := time.Now()
	// As documented in docs/use/kubernetes-reference.md.
	n.told("second", "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim second-half-")
	n.told("second", fmt.Sprintf("the claim asks for %dMi on device GPU-6b1d3c52-9a04-4e7f-8c21-5fa6d037e900, of which programs outside of slices hold ", half/mib))
	passed := time.Since(begin).Seconds()
	if tries := n.counted(`gpuslice_dra_prepare_seconds_count{refused="true"}`) - refused; tries > passed/30+1 {
		n.t.Errorf("in %.0f s the driver has refused the claim %v times, want one in 30 s", passed, tries)
	}
	if writes := n.counted("gpuslice_dra_slices_written_total") - written; writes > passed/5+2 {
		n.t.Errorf("in %.0f s the driver has written %v times, want one in 5 s", passed, writes)
	}
	end()
	n.running("second")
	n.wrote("second", "a", holds(gib, half))
}

// counted returns a metric of the driver, 0 if it has not counted yet.
func (n *node) counted(name string) float64 {
	n.t.Helper()
	r, err := http.Get("http://127.0.0.1:9837/metrics")
	n.Must(err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	n.Must(err)
	_, rest, found := strings.Cut(string(text), "\n"+name+" ")
	if !found {
		return 0
	}
	number, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(number, 64)
	n.Must(err)
	return value
}
