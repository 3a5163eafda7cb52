//go:build scale

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// Interval of a kubelet's lease, and the time after which a node without one is not ready.
const (
	leaseEvery = 10 * time.Second
	leaseTime  = 40 * time.Second
)

type node struct {
	*cards
	name  string
	lease *coordination.Lease
}

// addNodes creates the nodes with publishers and leases, and waits until all have published.
func (r *run) addNodes() {
	r.T.Helper()
	r.nodes = make(map[string]*node)
	var all []*node
	for i := range *nodes {
		n := &node{cards: newCards(i), name: fmt.Sprintf("node-%04d", i)}
		all, r.nodes[n.name] = append(all, n), n
	}
	each(all, 16, func(n *node) { r.must(r.register(n)) })
	for i, n := range all {
		r.background.Go(func() { r.keepLease(n, leaseEvery*time.Duration(i)/time.Duration(len(all))) })
		r.background.Go(func() { r.publish(n) })
	}
	r.eventually("each node has published and is ready", 5*time.Minute, func() error {
		if _, nodes := r.slices.count(); nodes < len(all) {
			return fmt.Errorf("%d of %d have published", nodes, len(all))
		}
		list, err := r.Client.CoreV1().Nodes().List(r.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if len(n.Spec.Taints) > 0 {
				return fmt.Errorf("node %s has the taint %s", n.Name, n.Spec.Taints[0].Key)
			}
		}
		return nil
	})
}

// register creates a node as a kubelet does at its start.
func (r *run) register(n *node) error {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	ready := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}
	_, err := r.Client.CoreV1().Nodes().Create(r.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelHostname: n.name}},
		Status:     corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{ready}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.lease, err = r.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(r.ctx, &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Namespace: corev1.NamespaceNodeLease},
		Spec: coordination.LeaseSpec{
			HolderIdentity: &n.name, LeaseDurationSeconds: ptr.To(int32(leaseTime.Seconds())), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}, metav1.CreateOptions{})
	return err
}

func (r *run) keepLease(n *node, first time.Duration) {
	for wait := first; ; wait = leaseEvery {
		select {
		case <-r.ctx.Done():
			return
		case <-time.After(wait):
		}
		n.lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		renewed, err := r.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(r.ctx, n.lease, metav1.UpdateOptions{})
		if err != nil {
			r.fault("lease of %s not renewed: %v", n.name, err)
			continue
		}
		n.lease = renewed
	}
}

// publish runs the driver's publisher with the controller that the driver uses.
func (r *run) publish(n *node) {
	var controller *resourceslice.Controller
	p := &inventory.Publisher{
		Enforcer: n, Node: n.name, Times: inventory.DefaultTimes, Log: slog.New(slog.DiscardHandler),
		OnHost: func(inventory.Host) {}, OnReached: func() {}, OnAway: func() { r.fault("the enforcer of %s does not answer", n.name) }, Event: func(api.Event) {}, Written: func() {},
		Publish: func(_ context.Context, resources resourceslice.DriverResources) (err error) {
			if *order == orderPlain {
				plain(resources.Pools[n.name])
			}
			if controller != nil {
				controller.Update(&resources)
				return nil
			}
			controller, err = resourceslice.StartController(r.ctx, resourceslice.Options{
				DriverName: config.Driver, KubeClient: r.Client, Resources: &resources,
				Owner:        &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: n.name},
				ErrorHandler: func(_ context.Context, err error, msg string) { r.fault("%s: %s: %v", n.name, msg, err) },
			})
			return err
		},
	}
	p.Run(r.ctx, nil)
	if controller != nil {
		controller.Stop()
	}
}

// plain sorts the devices by the host's index, as a driver without its own order does.
func plain(p resourceslice.Pool) {
	for _, s := range p.Slices {
		slices.SortFunc(s.Devices, func(a, b resourceapi.Device) int {
			return cmp.Compare(*a.Attributes["index"].IntValue, *b.Attributes["index"].IntValue)
		})
	}
}

// written records the API server's writes of ResourceSlices.
type written struct {
	mu  sync.Mutex
	all []time.Time
	of  map[string][]time.Time // by node
}

func (w *written) record(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.all, w.of[node] = append(w.all, now), append(w.of[node], now)
}

func (w *written) count() (writes, nodes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all), len(w.of)
}

func (w *written) mostOfANode() (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.of {
		first := 0
		for i := range at {
			for at[i].Sub(at[first]) >= time.Minute {
				first++
			}
			most = max(most, i-first+1)
		}
	}
	return most
}
