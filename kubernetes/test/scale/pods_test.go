//go:build scale

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

const namespace = "scale"

// sizes are the sizes of claims in GiB.
var sizes = []int{2, 4, 6, 8, 10, 12, 16, 20, 24, 40}

func template(size int) string { return fmt.Sprintf("vram-%dgi", size) }

type pod struct {
	name    string
	created time.Time
	bound   time.Time
	node    *node
	claim   string // UID
	grants  []grant
}

// pods holds the pods of the run that have not ended.
type pods struct {
	mu      sync.Mutex
	made    int
	all     map[string]*pod
	running []*pod
}

func (r *run) addTemplates() {
	r.T.Helper()
	_, err := r.Client.CoreV1().Namespaces().Create(r.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	r.must(err)
	for _, size := range sizes {
		request := resourceapi.ExactDeviceRequest{DeviceClassName: "vram.gpuslice.io", Capacity: &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{inventory.Memory: resource.MustParse(fmt.Sprintf("%dGi", size))},
		}}
		_, err := r.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(r.ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: template(size)},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}},
			}}},
		}, metav1.CreateOptions{})
		r.must(err)
	}
	r.eventually("the namespace has its account", time.Minute, func() error {
		_, err := r.Client.CoreV1().ServiceAccounts(namespace).Get(r.ctx, "default", metav1.GetOptions{})
		return err
	})
}

// create creates the next pod with a claim of random size.
func (r *run) create(chance *rand.Rand) {
	size := sizes[chance.IntN(len(sizes))]
	r.pods.mu.Lock()
	p := &pod{name: fmt.Sprintf("pod-%06d", r.pods.made), created: time.Now()}
	r.pods.made++
	r.pods.all[p.name] = p
	r.pods.mu.Unlock()
	r.count(func(c *counts) { c.waiting++ })
	r.background.Go(func() {
		_, err := r.Client.CoreV1().Pods(namespace).Create(r.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: p.name},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false),
				ResourceClaims: []corev1.PodResourceClaim{{Name: "vram", ResourceClaimTemplateName: ptr.To(template(size))}},
				Containers: []corev1.Container{{
					Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "vram"}}},
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			r.fault("pod %s not made: %v", p.name, err)
		}
	})
}

// watchPods starts bound pods, as kubelets do.
func (r *run) watchPods() {
	r.T.Helper()
	seen := func(object any) {
		if p, ok := object.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			r.bound(p)
		}
	}
	_, pods := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(r.Client.CoreV1().RESTClient(), "pods", namespace, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, now any) { seen(now) }},
	})
	go pods.RunWithContext(r.ctx)
	if !cache.WaitForCacheSync(r.ctx.Done(), pods.HasSynced) {
		r.T.Fatal("the pods were not listed")
	}
}

func (r *run) bound(object *corev1.Pod) {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	p := r.pods.all[object.Name]
	if p == nil || p.node != nil {
		return
	}
	p.bound, p.node = time.Now(), r.nodes[object.Spec.NodeName]
	claims := object.Status.ResourceClaimStatuses
	r.count(func(c *counts) {
		c.waiting--
		c.bound++
		c.waits = append(c.waits, p.bound.Sub(p.created))
	})
	r.background.Go(func() {
		if err := r.start(p, claims); err != nil {
			r.fault("pod %s on %s not started: %v", p.name, p.node.name, err)
		}
	})
}

// start does the part of the kubelet and the driver for a bound pod.
func (r *run) start(p *pod, claims []corev1.PodResourceClaimStatus) error {
	if len(claims) != 1 || claims[0].ResourceClaimName == nil {
		return fmt.Errorf("it was bound without a claim: %+v", claims)
	}
	claim, err := r.Client.ResourceV1().ResourceClaims(namespace).Get(r.ctx, *claims[0].ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	p.claim = string(claim.UID)
	for c, bytes := range allocated(claim) {
		if c.node != p.node.name {
			return fmt.Errorf("its claim is on a card of %s", c.node)
		}
		p.grants = append(p.grants, grant{c.device, bytes})
	}
	if len(p.grants) == 0 {
		return fmt.Errorf("its claim %s is not allocated", claim.Name)
	}
	if err := p.node.prepare(p.claim, p.grants); err != nil {
		return err
	}
	if err := r.phase(p, corev1.PodRunning); err != nil {
		return err
	}
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	r.pods.running = append(r.pods.running, p)
	return nil
}

func (r *run) phase(p *pod, phase corev1.PodPhase) error {
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}},
	}})
	if err != nil {
		return err
	}
	_, err = r.Client.CoreV1().Pods(namespace).Patch(r.ctx, p.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// end ends a random running pod. It returns false if there is none.
func (r *run) end(chance *rand.Rand) bool {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	if len(r.pods.running) == 0 {
		return false
	}
	i := chance.IntN(len(r.pods.running))
	p := r.pods.running[i]
	r.pods.running = slices.Delete(r.pods.running, i, i+1)
	delete(r.pods.all, p.name)
	r.count(func(c *counts) { c.ended++ })
	r.background.Go(func() {
		// The kubelet too unprepares claims before the pod's phase is Succeeded.
		p.node.unprepare(p.claim, p.grants)
		err := r.phase(p, corev1.PodSucceeded)
		if err == nil {
			err = r.Client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(r.ctx), p.name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		}
		if err != nil {
			r.fault("pod %s not ended: %v", p.name, err)
		}
	})
	return true
}
