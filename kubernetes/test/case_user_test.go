//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func namespaceBounds(n *node) {
	n.label("gpuslice.io/max-vram", "4Gi")
	n.eventually("a request above the bound is refused", func() error {
		err := n.tryTemplate("large-"+strconv.FormatInt(time.Now().UnixNano(), 10), resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", "8Gi")}})
		if err == nil || !strings.Contains(err.Error(), "at most 4Gi") {
			return fmt.Errorf("8Gi: %w", err)
		}
		return nil
	})
	if err := n.tryTemplate("whole", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", "")}}); err == nil {
		n.t.Error("a whole card is accepted")
	}
	n.template("vram", request("gpu", "4Gi"))

	_, err := n.kube.CoreV1().ResourceQuotas(n.ns).Create(context.Background(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{class + ".deviceclass.resource.k8s.io/devices": resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	n.Must(err)
	n.eventually("the namespace's quota is counted", func() error {
		q, err := n.kube.CoreV1().ResourceQuotas(n.ns).Get(context.Background(), "devices", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = errors.New("it has no status")
		}
		return err
	})
	n.claim("first", request("gpu", "1Gi"))
	if err := n.tryClaim("second", request("gpu", "1Gi")); err == nil || !strings.Contains(err.Error(), "exceeded quota") {
		n.t.Errorf("a device more than the namespace may have: %v", err)
	}
}

// forged lists annotations by which a pod may try to get more memory, or another's.
var forged = map[string]string{
	"cdi.k8s.io/x": "nvidia.com/gpu=1", "cdi.k8s.io/y": "gpuslice.io/vram=x", "gpuslice.vram": "40G", "gpuslice.pool": "other",
}

func forgedAnnotations(n *node) {
	n.template("vram", request("gpu", "2Gi"))
	p := n.pod("forger", []string{"vram"}, container("a", sleep, "vram"))
	p.Annotations = forged
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "GPUSLICE_VRAM", Value: "40G"}, {Name: "GPUSLICE_POOL", Value: "other"}}
	n.start(p)
	n.sees("forger", "a", 2*gib)
	n.refused("forger", "a", 3*gib)

	p = n.pod("without-claim", nil, container("a", sleep))
	p.Annotations = forged
	n.start(p)
	if out, err := n.exec("without-claim", "a", "/bin/sh", "-c", "ls -d /dev/nvidia* /.gpuslice /demo 2>/dev/null || true"); err != nil || strings.TrimSpace(out) != "" {
		n.t.Errorf("a pod without a claim has %q, %v", out, err)
	}
}

func runtimeClass(n *node) {
	runtimeClassBeside(n)
	for key, value := range map[string]string{"gpuslice.pool": "other", "gpuslice.elastic": "true"} {
		p := n.pod(key, []string{"vram"}, container("a", sleep, "vram"))
		p.Spec.RuntimeClassName = ptr.To("gpuslice")
		p.Annotations = map[string]string{key: value}
		n.create(p)
		// As documented in docs/use/kubernetes-reference.md.
		n.told(key, fmt.Sprintf("Error: failed to create containerd task: failed to create shim task: gpuslice: annotation %s=%q is not accepted beside a resource claim", key, value))
	}
	c, err := n.claimOf("both")
	n.Must(err)
	n.elsewhere(func() {
		stranger := n.pod("stranger", nil, container("a", sleep))
		stranger.Spec.RuntimeClassName = ptr.To("gpuslice")
		stranger.Annotations = map[string]string{"gpuslice.pool": fmt.Sprintf("dra-%s-0", c.UID)}
		n.create(stranger)
		n.told("stranger", fmt.Sprintf("there is no pool dra-%s-0", c.UID))
	})
	if limit, used := n.used("both", 0); limit != 2*gib || used > limit {
		n.t.Errorf("after a pod of another namespace has named it the pool has %d, of which %d are in use", limit, used)
	}
}

// runtimeClassBeside: the smaller of claim and annotation applies.
func runtimeClassBeside(n *node) {
	_, err := n.plane.Kubectl("", "apply", "-f", "../deploy/aliases/runtimeclass.yaml")
	n.Must(err)
	n.template("vram", request("gpu", "2Gi"))
	p := n.pod("both", []string{"vram"}, container("a", sleep, "vram"))
	p.Spec.RuntimeClassName = ptr.To("gpuslice")
	n.start(p)
	n.sees("both", "a", 2*gib)
	n.refused("both", "a", 2*gib)

	p = n.pod("smaller", []string{"vram"}, container("a", sleep, "vram"))
	p.Spec.RuntimeClassName = ptr.To("gpuslice")
	p.Annotations = map[string]string{"gpuslice.vram": "1Gi"}
	n.start(p)
	n.refused("smaller", "a", gib+gib/2)
}

// fromElsewhere runs pods written for HAMi and NVIDIA's toolkit, with init containers and sidecars. Volumes replace the device
// plugin.
func fromElsewhere(n *node) {
	_, err := n.plane.Kubectl("", "apply", "-k", "../deploy/aliases")
	n.Must(err)
	n.label("gpuslice.io/aliases", "enabled")
	gpumem := func(c *corev1.Container) {
		c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpumem": resource.MustParse("2048")}
	}
	limit := func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_GPU_MEMORY_LIMIT", Value: "2048"})
	}
	for name, says := range map[string]func(*corev1.Container){"hami": gpumem, "toolkit": limit} {
		before, beside, main := container("before", []string{"/bin/sh", "-c", hogOnce(gib)}), container("beside", sleep), container("main", hog(gib))
		beside.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		p := n.pod(name, nil, main)
		p.Spec.InitContainers = []corev1.Container{before, beside}
		n.withCards(p)
		for _, c := range []*corev1.Container{&p.Spec.InitContainers[0], &p.Spec.InitContainers[1], &p.Spec.Containers[0]} {
			says(c)
		}
		n.eventually("the aliases are in force", func() error {
			dry, err := n.kube.CoreV1().Pods(n.ns).Create(context.Background(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && dry.Annotations["gpuslice.vram"] != "2048Mi" {
				err = fmt.Errorf("annotations %v", dry.Annotations)
			}
			return err
		})
		n.start(p)
		n.wrote(name, "before", holds(gib, 2*gib))
		n.wrote(name, "main", holds(gib, 2*gib))
		n.refused(name, "main", gib)
		out, err := n.exec(name, "beside", "/bin/sh", "-c", hogOnce(gib)) // each separately
		if err != nil || !strings.Contains(out, holds(gib, 2*gib)) {
			n.t.Errorf("the sidecar of pod %s: %q, %v", name, out, err)
		}
		n.refused(name, "beside", 2*gib)
	}
}

// withCards adds the files that NVIDIA's toolkit would.
func (n *node) withCards(p *corev1.Pod) {
	for name, dir := range map[string]string{"fakecuda": filepath.Join(n.Bin, "fakecuda"), "fake": n.in("fake"), "demo": filepath.Join(n.Bin, "demo")} {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	}
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			for _, v := range p.Spec.Volumes {
				all[i].VolumeMounts = append(all[i].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
			}
			all[i].Env = append(all[i].Env, corev1.EnvVar{Name: "LD_LIBRARY_PATH", Value: "/fakecuda"}, corev1.EnvVar{Name: "FAKECUDA_STATE", Value: "/fake/state"})
		}
	}
}

func (n *node) label(key, value string) {
	n.t.Helper()
	_, err := n.kube.CoreV1().Namespaces().Patch(context.Background(), n.ns, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata": {"labels": {%q: %q}}}`, key, value), metav1.PatchOptions{})
	n.Must(err)
}

// adminAccess is rejected: a device is a quota and cannot be monitored.
func adminAccess(n *node) {
	n.label("resource.kubernetes.io/admin-access", "true")
	r := request("gpu", "")
	r.Exactly.AdminAccess = ptr.To(true)
	n.template("vram", r)
	n.create(n.pod("admin", []string{"vram"}, container("a", sleep, "vram")))
	n.told("admin", "has adminAccess, which is not accepted")
}

func (n *node) configured(parameters map[string]string, r resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	n.t.Helper()
	parameters["apiVersion"], parameters["kind"] = "gpuslice.io/v1", "ClaimConfig"
	text, err := json.Marshal(parameters)
	n.Must(err)
	return resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{r},
		Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpuslice.io", Parameters: runtime.RawExtension{Raw: text}},
		}}},
	}
}

// ttl: each container's time begins at its start.
func ttl(n *node) {
	n.Must(n.tryTemplate("vram", n.configured(map[string]string{"ttl": "10s"}, request("gpu", "2Gi"))))
	n.start(n.pod("short", []string{"vram"}, container("a", hog(gib), "vram")))
	n.wrote("short", "a", holds(gib, 2*gib))
	n.eventually("the container's time is over", func() error {
		p, err := n.getPod("short")
		if err == nil && p.Status.Phase != corev1.PodFailed {
			err = errors.New(string(p.Status.Phase))
		}
		return err
	})
}

// refusedConfiguration is rejected by the policy, and by the driver if it was written before the policy.
func refusedConfiguration(n *node) {
	configured := n.configured(map[string]string{"ttl": "soon"}, request("gpu", "2Gi"))
	if err := n.tryTemplate("vram", configured); err == nil || !strings.Contains(err.Error(), "a ttl from 1s to 876000h is accepted") {
		n.t.Errorf("the configuration was written: %v", err)
	}
	n.Must(n.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(context.Background(), "gpuslice-config", metav1.DeleteOptions{}))
	defer n.manifests()
	n.eventually("nothing checks what is written", func() error { return n.tryTemplate("vram", configured) })
	n.create(n.pod("refused", []string{"vram"}, container("a", sleep, "vram")))
	n.told("refused", `ttl "soon" is not accepted`)
}
