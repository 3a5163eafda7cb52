//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// oneClaim uses plain runc, without RuntimeClass and annotation.
func oneClaim(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("one", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("one", "a", holds(2*gib, 4*gib))
	n.refused("one", "a", 2*gib)
	n.sees("one", "a", 4*gib)
	if limit, used := n.used("one", 0); limit != 4*gib || used < 2*gib || used > limit {
		n.t.Errorf("the pool has %d, of which %d are in use", limit, used)
	}
	n.told("one", "VRAMRefused")
	n.eventually("the claim says what it uses", func() error {
		c, err := n.claimOf("one")
		if err != nil || len(c.Status.Devices) != 1 || c.Status.Devices[0].Data == nil {
			return fmt.Errorf("%+v, %w", c.Status.Devices, err)
		}
		var says struct{ Granted, Used resource.Quantity }
		if err := json.Unmarshal(c.Status.Devices[0].Data.Raw, &says); err != nil || says.Granted.Value() != 4*gib || says.Used.Value() < 2*gib || says.Used.Value() > 4*gib {
			return fmt.Errorf("%s, %w", c.Status.Devices[0].Data.Raw, err)
		}
		return nil
	})
}

func twoContainersShare(n *node) {
	n.template("vram", request("gpu", "8Gi"))
	n.start(n.pod("two", []string{"vram"}, container("a", hog(5*gib), "vram"), container("b", sleep, "vram")))
	n.wrote("two", "a", holds(5*gib, 8*gib))
	n.refused("two", "b", 5*gib)
	n.sees("two", "b", 8*gib)
}

func twoPodsShare(n *node) {
	n.claim("shared", request("gpu", "8Gi"))
	n.start(n.pod("first", []string{"vram=shared"}, container("a", hog(5*gib), "vram")))
	n.wrote("first", "a", holds(5*gib, 8*gib))
	n.start(n.pod("second", []string{"vram=shared"}, container("a", sleep, "vram")))
	n.refused("second", "a", 5*gib)
	n.delete("first") // the claim stays, since it has a pod
	out, err := n.exec("second", "a", "/bin/sh", "-c", hogOnce(5*gib))
	if err != nil || !strings.Contains(out, holds(5*gib, 8*gib)) {
		n.t.Errorf("when the first pod is gone: %q, %v", out, err)
	}
}

func twoRequestsInTwoContainers(n *node) {
	n.template("vram", request("small", "2Gi"), request("large", "6Gi"))
	n.start(n.pod("split", []string{"vram"}, container("a", sleep, "vram/small"), container("b", hog(5*gib), "vram/large")))
	n.wrote("split", "b", holds(5*gib, 6*gib))
	n.sees("split", "a", 2*gib)
	n.refused("split", "a", 2*gib)
}

// onDevice runs a command on the nth card of the simulated driver.
func onDevice(index int, command ...string) []string {
	return append([]string{"/usr/bin/env", fmt.Sprint("CUDA_VISIBLE_DEVICES=", index)}, command...)
}

// seesEach fails unless a container has the quota on both cards.
func (n *node) seesEach(pod, container string, quota uint64) {
	n.t.Helper()
	for i := range 2 {
		out, err := n.exec(pod, container, onDevice(i, hog(0)...)...)
		if err != nil || !strings.Contains(out, holds(0, quota)) {
			n.t.Errorf("device %d: %q, %v; want a card of %d bytes", i, out, err, quota)
		}
	}
}

func twoRequestsInAContainer(n *node) {
	n.template("vram", request("one", "60Gi"), request("other", "60Gi")) // too large for one card
	n.start(n.pod("both", []string{"vram"}, container("a", sleep, "vram")))
	n.seesEach("both", "a", 60*gib)
}

func twoClaimsInAContainer(n *node) {
	for _, name := range []string{"one", "other"} { // too large for one card
		n.template(name, request("gpu", "60Gi"))
	}
	n.start(n.pod("both", []string{"one", "other"}, container("a", sleep, "one", "other")))
	n.seesEach("both", "a", 60*gib)
}

func twoRequestsOnOneCard(n *node) {
	n.template("vram", request("one", "2Gi"), request("other", "6Gi"))
	n.create(n.pod("both", []string{"vram"}, container("a", sleep, "vram")))
	n.told("both", "both have a quota on device")
}

func severalGPUs(n *node) {
	r := request("gpus", "50Gi") // too large for one card
	r.Exactly.Count = 2
	n.template("vram", r)
	n.start(n.pod("many", []string{"vram"}, container("a", sleep, "vram")))
	n.seesEach("many", "a", 50*gib)
}

func firstThatFits(n *node) {
	n.template("vram", resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "huge", DeviceClassName: class, Capacity: quantities("90Gi")}, {Name: "small", DeviceClassName: class, Capacity: quantities("5Gi")},
	}})
	n.start(n.pod("list", []string{"vram"}, container("a", sleep, "vram/gpu")))
	n.sees("list", "a", 5*gib)
}

func tooBig(n *node) {
	n.template("sixty", request("gpu", "60Gi"))
	n.template("ninety", request("gpu", "90Gi"))
	for _, name := range []string{"first", "second"} {
		n.start(n.pod(name, []string{"sixty"}, container("a", sleep, "sixty")))
	}
	n.create(n.pod("never", []string{"ninety"}, container("a", sleep, "ninety")))
	n.create(n.pod("waits", []string{"sixty"}, container("a", sleep, "sixty")))
	for _, name := range []string{"never", "waits"} {
		n.told(name, "cannot allocate all claims")
		if p, err := n.getPod(name); err != nil || p.Status.Phase != corev1.PodPending {
			n.t.Errorf("pod %s: %+v, %v; want it Pending", name, p.Status, err)
		}
	}
	n.delete("first")
	n.running("waits")
}

func wholeCard(n *node) {
	n.template("vram", request("gpu", ""))
	n.start(n.pod("whole", []string{"vram"}, container("a", sleep, "vram")))
	if limit, _ := n.used("whole", 0); limit != n.memory() {
		n.t.Errorf("the pool has %d of a card of %d", limit, n.memory())
	}
}

// memory returns the bytes of an empty card available to claims.
func (n *node) memory() uint64 {
	n.t.Helper()
	var whole int64
	for _, d := range n.resourceSlices()[0].Spec.Devices {
		if inventory.IsElastic(d.Name) {
			continue
		}
		memory := d.Capacity["memory"]
		whole = max(whole, memory.Value.Value())
	}
	return uint64(whole)
}
