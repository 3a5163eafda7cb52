//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	n.tainted(true)
	n.create(n.pod("waits", []string{"vram"}, container("a", sleep, "vram")))
	n.told("waits", "cannot allocate all claims")
	for range 60 { // enough time for a controller that would delete the running pod
		p, err := n.getPod("stays")
		if err != nil || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			n.t.Fatalf("the pod that ran: %+v, %v", p.Status, err)
		}
		time.Sleep(time.Second)
	}
	n.health("stays", corev1.ResourceHealthStatusUnknown)
	n.Start()
	n.tainted(false)
	n.health("stays", corev1.ResourceHealthStatusHealthy)
	n.running("waits")
	n.sees("waits", "a", 4*gib)
	n.refused("stays", "a", 2*gib)
}

// tainted waits until all devices have the NoSchedule taint, or none has one.
func (n *node) tainted(want bool) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the devices are tainted: %t", want), func() error {
		published := n.resourceSlices()
		if len(published) != 1 {
			return fmt.Errorf("%d ResourceSlices", len(published))
		}
		for _, d := range published[0].Spec.Devices {
			is := len(d.Taints) == 1 && d.Taints[0].Key == inventory.TaintUnreachable && d.Taints[0].Effect == "NoSchedule"
			if is != want || !want && len(d.Taints) > 0 {
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
