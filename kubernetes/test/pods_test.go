//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	class = "vram.gpuslice.io"
	mib   = 1 << 20
	gib   = 1 << 30
)

// quantities returns the memory of a request, or nil if memory is "".
func quantities(memory string) *resourceapi.CapacityRequirements {
	if memory == "" {
		return nil
	}
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
}

func request(name, memory string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: quantities(memory)}}
}

func (n *node) template(name string, requests ...resourceapi.DeviceRequest) {
	n.t.Helper()
	n.Must(n.tryTemplate(name, resourceapi.DeviceClaim{Requests: requests}))
}

func (n *node) tryTemplate(name string, devices resourceapi.DeviceClaim) error {
	_, err := n.kube.ResourceV1().ResourceClaimTemplates(n.ns).Create(context.Background(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: devices}},
	}, metav1.CreateOptions{})
	return err
}

func (n *node) claim(name string, requests ...resourceapi.DeviceRequest) {
	n.t.Helper()
	n.Must(n.tryClaim(name, requests...))
}

func (n *node) tryClaim(name string, requests ...resourceapi.DeviceRequest) error {
	_, err := n.kube.ResourceV1().ResourceClaims(n.ns).Create(context.Background(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}, metav1.CreateOptions{})
	return err
}

// hog is a command that allocates device memory and keeps it.
func hog(bytes int64) []string {
	return []string{"/demo/cuda_hog", fmt.Sprint(bytes)}
}

var sleep = []string{"/bin/sleep", "3600"}

// container returns a container with claims of its pod, each "claim" or "claim/request".
func container(name string, command []string, claims ...string) corev1.Container {
	c := corev1.Container{Name: name, Image: imageRef("debian"), ImagePullPolicy: corev1.PullNever, Command: command}
	for _, claim := range claims {
		claim, request, _ := strings.Cut(claim, "/")
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim, Request: request})
	}
	return c
}

// pod returns a pod with claims: "name" from the template of that name, or "name=claim" for an existing one.
func (n *node) pod(name string, claims []string, containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1),
		AutomountServiceAccountToken: ptr.To(false), Containers: containers,
	}}
	for _, c := range claims {
		name, existing, shared := strings.Cut(c, "=")
		r := corev1.PodResourceClaim{Name: name}
		if shared {
			r.ResourceClaimName = &existing
		} else {
			r.ResourceClaimTemplateName = &name
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, r)
	}
	return p
}

func (n *node) create(p *corev1.Pod) {
	n.t.Helper()
	_, err := n.kube.CoreV1().Pods(n.ns).Create(context.Background(), p, metav1.CreateOptions{})
	n.Must(err)
}

func (n *node) getPod(name string) (*corev1.Pod, error) {
	return n.kube.CoreV1().Pods(n.ns).Get(context.Background(), name, metav1.GetOptions{})
}

func (n *node) running(name string) {
	n.t.Helper()
	n.eventually("pod "+name+" runs", func() error {
		p, err := n.getPod(name)
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s %s: %s", p.Status.Phase, p.Status.Reason, n.events(name))
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running == nil {
				return fmt.Errorf("container %s: %+v", c.Name, c.State)
			}
		}
		return nil
	})
}

// ended waits until a container of a pod failed to start with a message that contains all words.
func (n *node) ended(name string, words ...string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("pod %s says %q", name, words), func() error {
		p, err := n.getPod(name)
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, s := range []corev1.ContainerState{c.State, c.LastTerminationState} {
				if s.Terminated != nil && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s.Terminated.Message, w) }) {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v; %s", p.Status, n.events(name))
	})
}

func (n *node) start(p *corev1.Pod) {
	n.t.Helper()
	n.create(p)
	n.running(p.Name)
}

func (n *node) delete(name string) {
	n.t.Helper()
	n.Must(n.kube.CoreV1().Pods(n.ns).Delete(context.Background(), name, metav1.DeleteOptions{}))
	n.gone(name)
}

func (n *node) gone(name string) {
	n.t.Helper()
	n.eventually("pod "+name+" is gone", func() error {
		p, err := n.getPod(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%s, %s", p.Status.Phase, n.events(name))
	})
}

// events returns the events that `kubectl describe` shows for a pod.
func (n *node) events(pod string) string {
	list, err := n.kube.CoreV1().Events(n.ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	return strings.Join(all, "; ")
}

// told waits until an event of a pod contains text.
func (n *node) told(pod, text string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("pod %s has an event with %q", pod, text), func() error {
		if events := n.events(pod); !strings.Contains(events, text) {
			return errors.New(events)
		}
		return nil
	})
}

func (n *node) logs(pod, container string) (string, error) {
	text, err := n.kube.CoreV1().Pods(n.ns).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(context.Background())
	return string(text), err
}

// wrote waits until the output of a container contains text.
func (n *node) wrote(pod, container, text string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s of pod %s has written %q", container, pod, text), func() error {
		got, err := n.logs(pod, container)
		if err == nil && !strings.Contains(got, text) {
			err = errors.New(got)
		}
		return err
	})
}

func (n *node) exec(pod, container string, command ...string) (string, error) {
	return n.plane.Kubectl("", append([]string{"--namespace=" + n.ns, "exec", pod, "--container=" + container, "--"}, command...)...)
}

// health waits until a pod's status reports the health of its devices as want.
func (n *node) health(pod string, want corev1.ResourceHealthStatus) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the devices of pod %s are %s", pod, want), func() error {
		p, err := n.getPod(pod)
		if err != nil {
			return err
		}
		for _, s := range p.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, r := range s.Resources {
				if r.Health == want {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", p.Status.ContainerStatuses[0].AllocatedResourcesStatus)
	})
}

// hogOnce returns a shell's commands: a process allocates, and is ended when it has said so.
func hogOnce(bytes int64) string {
	return fmt.Sprintf("/demo/cuda_hog %d >/tmp/said & until [ -s /tmp/said ]; do sleep 0.05; done; cat /tmp/said; kill $!; wait", bytes)
}

// holds is hog's output.
func holds(bytes, quota uint64) string { return fmt.Sprintf("holds %d of %d", bytes, quota) }

// sees fails unless a container sees a card of that size.
func (n *node) sees(pod, container string, quota uint64) {
	n.t.Helper()
	out, err := n.exec(pod, container, hog(0)...)
	if err != nil || !strings.Contains(out, holds(0, quota)) {
		n.t.Errorf("%s of pod %s: %q, %v; want a card of %d bytes", container, pod, out, err, quota)
	}
}

// refused fails unless a container is refused that much memory.
func (n *node) refused(pod, container string, bytes int64) {
	n.t.Helper()
	out, err := n.exec(pod, container, hog(bytes)...)
	if err == nil || !strings.Contains(out, "exit code 2") {
		n.t.Errorf("%s of pod %s took %d bytes: %q, %v; want CUDA_ERROR_OUT_OF_MEMORY", container, pod, bytes, out, err)
	}
}

func (n *node) claimOf(pod string) (*resourceapi.ResourceClaim, error) {
	p, err := n.getPod(pod)
	if err != nil || len(p.Status.ResourceClaimStatuses) != 1 {
		return &resourceapi.ResourceClaim{}, fmt.Errorf("pod %s does not have one claim: %w", pod, err)
	}
	return n.kube.ResourceV1().ResourceClaims(n.ns).Get(context.Background(), *p.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
}

// used returns the limit and the usage of a claim's nth request on its first device.
func (n *node) used(pod string, index int) (limit, used uint64) {
	n.t.Helper()
	c, err := n.claimOf(pod)
	n.Must(err)
	pool, err := n.Client.Pool(context.Background(), fmt.Sprintf("dra-%s-%d", c.UID, index))
	n.Must(err)
	return pool.Devices[0].Limit, pool.Devices[0].Used
}

// clean deletes the case's pods and namespace. It fails if claims have left something on the node.
func (n *node) clean() {
	n.t.Helper()
	n.empty()
	n.Must(n.kube.CoreV1().Namespaces().Delete(context.Background(), n.ns, metav1.DeleteOptions{}))
}

// empty deletes the case's pods and waits until the node has nothing of claims.
func (n *node) empty() {
	n.t.Helper()
	ctx := context.Background()
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}
	n.Must(n.kube.CoreV1().Pods(n.ns).DeleteCollection(ctx, now, metav1.ListOptions{}))
	n.eventually("the pods are gone", func() error {
		list, err := n.kube.CoreV1().Pods(n.ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	n.eventually("the node has nothing of claims", n.left)
}

// elsewhere runs do in another namespace.
func (n *node) elsewhere(do func()) {
	n.t.Helper()
	ns := n.ns
	n.of(n.t)
	other := n.ns
	defer func() {
		n.ns = ns
		n.Must(n.kube.CoreV1().Namespaces().Delete(context.Background(), other, metav1.DeleteOptions{}))
		n.eventually("the namespace is gone", func() error {
			if _, err := n.kube.CoreV1().Namespaces().Get(context.Background(), other, metav1.GetOptions{}); err == nil {
				return errors.New("it is there")
			}
			return nil
		})
	}()
	do()
}
