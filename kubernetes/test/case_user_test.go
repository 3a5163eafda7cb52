//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func namespaceBounds(n *node) {
	_, err := n.kube.CoreV1().Namespaces().Patch(context.Background(), n.ns, types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"gpuslice.io/max-vram": "4Gi"}}}`), metav1.PatchOptions{})
	n.Must(err)
	n.eventually("what is above the bound is refused", func() error {
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
}

// forged is what a pod can write to have more, or another's.
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
	_, err := n.kube.NodeV1().RuntimeClasses().Create(context.Background(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gpuslice"}, Handler: "gpuslice"}, metav1.CreateOptions{})
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

	p = n.pod("elsewhere", []string{"vram"}, container("a", sleep, "vram"))
	p.Spec.RuntimeClassName = ptr.To("gpuslice")
	p.Annotations = map[string]string{"gpuslice.pool": "other"}
	n.create(p)
	// As docs/use/kubernetes.md has it.
	n.told("elsewhere", `Error: failed to create containerd task: failed to create shim task: gpuslice: annotation gpuslice.pool="other" is not accepted beside a resource claim`)
}

// adminAccess: a device is a quota, and there is none to watch over.
func adminAccess(n *node) {
	_, err := n.kube.CoreV1().Namespaces().Patch(context.Background(), n.ns, types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}`), metav1.PatchOptions{})
	n.Must(err)
	r := request("gpu", "")
	r.Exactly.AdminAccess = ptr.To(true)
	n.template("vram", r)
	n.create(n.pod("admin", []string{"vram"}, container("a", sleep, "vram")))
	n.told("admin", "asks for adminAccess, which is not accepted")
}

// refusedConfiguration: by the policy when it is written, and by the driver if it was written before the policy was there.
func refusedConfiguration(n *node) {
	parameters, err := json.Marshal(map[string]string{"apiVersion": "gpuslice.io/v1", "kind": "ClaimConfig", "ttl": "soon"})
	n.Must(err)
	configured := resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{request("gpu", "2Gi")},
		Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpuslice.io", Parameters: runtime.RawExtension{Raw: parameters}},
		}}},
	}
	if err := n.tryTemplate("vram", configured); err == nil || !strings.Contains(err.Error(), "a ttl from 1s to 876000h is accepted") {
		n.t.Errorf("the configuration was written: %v", err)
	}
	n.Must(n.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(context.Background(), "gpuslice-config", metav1.DeleteOptions{}))
	defer n.manifests()
	n.eventually("nothing checks what is written", func() error { return n.tryTemplate("vram", configured) })
	n.create(n.pod("refused", []string{"vram"}, container("a", sleep, "vram")))
	n.told("refused", `ttl "soon" is not accepted`)
}
