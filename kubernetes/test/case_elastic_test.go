//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/config"
)

const elasticClass = "elastic.gpuslice.io"

func elasticRequest(name, memory string) resourceapi.DeviceRequest {
	r := request(name, memory)
	r.Exactly.DeviceClassName = elasticClass
	return r
}

func (n *node) poolOf(pod string) api.Pool {
	n.t.Helper()
	c, err := n.claimOf(pod)
	n.Must(err)
	pool, err := n.Client.Pool(context.Background(), fmt.Sprintf("dra-%s-0", c.UID))
	n.Must(err)
	return pool
}

// elasticClaims runs three pods with two thirds of a card each on two cards, beside an ordinary claim.
func elasticClaims(n *node) {
	size := n.memory() / 3 * 2 / mib
	n.template("elastic", elasticRequest("gpu", fmt.Sprint(size, "Mi")))
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("ordinary", []string{"vram"}, container("a", hog(gib), "vram")))
	pods := []string{"one", "two", "three"}
	for _, name := range pods {
		n.start(n.pod(name, []string{"elastic"}, container("a", hog(2*gib), "elastic")))
		n.wrote(name, "a", holds(2*gib, size*mib))
	}
	state := func() (states string) {
		for _, name := range pods {
			p := n.poolOf(name)
			if !p.Elastic || p.Devices[0].Limit != size*mib {
				n.t.Errorf("the pool of %s is %+v", name, p)
			}
			states += string(p.State) + " "
		}
		return states
	}
	if got := state(); got == "active active active " {
		n.t.Error("three pools of two thirds of a card are on two cards")
	}
	for range 2 {
		for _, name := range pods {
			n.sees(name, "a", size*mib) // brings it back
			devices, err := n.Client.Devices(context.Background())
			n.Must(err)
			for _, d := range devices {
				if d.Quotas > d.Total {
					n.t.Errorf("%d of %d bytes are given of device %d", d.Quotas, d.Total, d.Index)
				}
			}
		}
	}
	n.sees("ordinary", "a", 4*gib)
}

// elasticOrNot: class and device must agree about elastic.
func elasticOrNot(n *node) {
	says := func(elastic bool) []resourceapi.DeviceClaimConfiguration {
		return []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: config.Driver, Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"gpuslice.io/v1","kind":"ClaimConfig","elastic":%t}`, elastic)},
		}}}}
	}
	n.Must(n.tryTemplate("not", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{elasticRequest("gpu", "1Gi")}, Config: says(false)}))
	n.create(n.pod("not", []string{"not"}, container("a", sleep, "not")))
	n.told("not", "a device for elastic claims, but its configuration is not elastic")
	n.Must(n.tryTemplate("is", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", "1Gi")}, Config: says(true)}))
	n.create(n.pod("is", []string{"is"}, container("a", sleep, "is")))
	n.told("is", "is elastic by its configuration, but device gpu-")
}
