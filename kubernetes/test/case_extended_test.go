//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// driverWith runs do while the driver has additional arguments.
func (n *node) driverWith(do func(), args ...string) {
	n.t.Helper()
	was := n.driver.Command
	again := func(command []string) {
		n.driver.Stop(unix.SIGTERM)
		n.driver.Command = command
		n.driver.Start()
	}
	defer func() {
		again(was)
		n.eventually("the cards are published as before", func() error {
			if slices := n.resourceSlices(); len(slices) != 1 || len(slices[0].Spec.Devices) != 4 {
				return fmt.Errorf("%d ResourceSlices", len(slices))
			}
			return nil
		})
	}()
	defer n.empty()
	again(append(was[:len(was):len(was)], args...))
	do()
}

// podWithResource is the spec of a pod that requests one unit of an extended resource, and has no claim of its own.
func podWithResource(resource string) string {
	return `$pod, containers: [{name: a, $image, command: [/demo/cuda_hog, "1073741824"], resources: {limits: {` + resource + `: 1}}}]`
}

const implicitResource = "deviceclass.resource.kubernetes.io/vram.gpuslice.io"

// extendedResources: a pod that requests an extended resource gets the operator's default size, or the size in the resource's name. The
// max-vram of its namespace is the upper bound.
func extendedResources(n *node) {
	n.label("gpuslice.io/max-vram", "16Gi")
	n.label("gpuslice.io/default-vram", "4Gi") // for claims without a size; the scheduler has already allocated one here
	const bound = "must name capacity.requests.memory of at most 16Gi"
	n.applyAndWait([]workload{{"whole", "Pod", "", podWithResource(implicitResource), []string{bound, "Pending"}}})
	claims, err := n.kube.ResourceV1().ResourceClaims(n.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		n.t.Errorf("the pod has claims %v, %v", claims.Items, err)
	}

	class, err := os.ReadFile("../deploy/sizes/deviceclass.yaml")
	n.Must(err)
	for _, size := range []string{"4", "32"} {
		_, err := n.plane.Kubectl(strings.NewReplacer("8Gi", size+"Gi", "8gi", size+"gi").Replace(string(class)), "apply", "-f", "-")
		n.Must(err)
	}
	n.driverWith(func() {
		n.eventually("the devices are published", func() error {
			if slices := n.resourceSlices(); len(slices) != 2 {
				return fmt.Errorf("%d ResourceSlices", len(slices))
			}
			return nil
		})
		n.applyAndWait([]workload{
			{"four", "Pod", "", podWithResource("gpuslice.io/vram-4gi"), []string{holds(gib, 4*gib)}},
			{"moved", "Deployment", "replicas: 2", strings.Replace(podWithResource("gpuslice.io/vram-4gi"), "$pod", "$node", 1),
				[]string{holds(gib, 4*gib), holds(gib, 4*gib)}},
			{"large", "Pod", "", podWithResource("gpuslice.io/vram-32gi"), []string{"may have at most 16Gi", "Pending"}},
		})
		n.elsewhere(func() {
			n.template("unsized", request("gpu", ""))
			n.template("most", request("gpu", "60Gi"))
			n.template("more", request("gpu", "20Gi"))
			most := `$pod, resourceClaims: [{name: vram, resourceClaimTemplateName: most}], containers: [{name: a, $image, command: [/demo/cuda_hog, "1073741824"], $uses}]`
			n.applyAndWait([]workload{
				{"default", "Pod", "", podWithResource(implicitResource), []string{holds(gib, 2*gib)}},
				{"unsized", "Pod", "", strings.Replace(most, ": most", ": unsized", 1), []string{holds(gib, 2*gib)}},
				{"most", "Pod", "", most, []string{holds(gib, 60*gib)}},
				{"large", "Pod", "", podWithResource("gpuslice.io/vram-32gi"), []string{holds(gib, 32*gib)}},
			})
			// The card used for fixed sizes has 35 GiB left, which claims with a size of their own cannot use.
			n.applyAndWait([]workload{{"more", "Pod", "", strings.Replace(most, ": most", ": more", 1), []string{"cannot allocate all claims", "Pending"}}})
			devices, err := n.Client.Devices(context.Background())
			n.Must(err)
			for _, d := range devices {
				var sum uint64
				for _, bytes := range d.Pools {
					sum += bytes
				}
				if sum != (3*4+32)*gib && sum != (2+2+60)*gib { // four, moved twice and large; or default, unsized and most
					n.t.Errorf("device %d has %v", d.Index, d.Pools)
				}
			}
		})
		n.withdraw()
	}, "--default-memory=2Gi", "--sizes=4Gi,32Gi")
}
