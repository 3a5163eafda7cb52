//go:build cluster

// SPDX-License-Identifier: Apache-2.0

// Package policies tests the admission policies and the rights of kubernetes/deploy on a real API server.
package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
)

// inForce limits the time until a new policy is in force; it takes a second.
const inForce = 2 * time.Minute

type site struct {
	*testing.T
	*cluster.Cluster
}

func (s site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// until waits for a condition that the API server reaches by itself.
func (s site) until(what string, condition func() error) {
	s.Helper()
	deadline := time.Now().Add(inForce)
	for err := condition(); err != nil; err = condition() {
		if time.Now().After(deadline) {
			s.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s site) namespace(name string, labels map[string]string) {
	s.Helper()
	_, err := s.Client.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	s.must(err)
}

// claim creates a claim as a dry run and returns the admitted one.
func (s site) claim(namespace, name, devices string) (*resourceapi.ResourceClaim, error) {
	s.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.must(yaml.UnmarshalStrict([]byte(devices), &c.Spec.Devices))
	return s.Client.ResourceV1().ResourceClaims(namespace).Create(s.Context(), c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func (s site) template(namespace, devices string) (*resourceapi.ResourceClaimTemplate, error) {
	s.Helper()
	c := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "template"}}
	s.must(yaml.UnmarshalStrict([]byte(devices), &c.Spec.Spec.Devices))
	return s.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(s.Context(), c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func refused(err error, words string) error {
	switch {
	case err == nil:
		return fmt.Errorf("it is accepted; it should be refused: %s", words)
	case !strings.Contains(err.Error(), words):
		return fmt.Errorf("got %q, want %q in it", err, words)
	}
	return nil
}

func request(memory string) string {
	if memory == "" {
		return `{requests: [{name: gpu, exactly: {deviceClassName: vram.gpuslice.io}}]}`
	}
	return `{requests: [{name: gpu, exactly: {deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: ` + memory + `}}}}]}`
}

func TestPolicies(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	for _, dir := range []string{"base", "aliases"} {
		if out, err := c.Kubectl("", "apply", "-k", "../../deploy/"+dir); err != nil {
			t.Fatal(out, err)
		}
	}
	for name, test := range map[string]func(site){
		"ANamespaceBoundsItsRequests":                      bounds,
		"ANamespaceHasADefaultSize":                        defaults,
		"AConfigurationIsRefusedWhereTheDriverWould":       configuration,
		"ThePodsOfOthersAreTranslated":                     aliases,
		"ThePodsOfOthersAreRefusedIfTheyMeanSomethingElse": aliasesRefused,
		"AContainerForDebuggingIsRefusedASizeOfItsOwn":     aliasesInDebugging,
		"ADriverWritesItsOwnNodesSlices":                   ownNode,
		"TheDriverMayDoThisAndNoMore":                      rights,
		"ADriverWritesTheStatusOfItsOwnNodesClaims":        claimStatus,
	} {
		t.Run(name, func(t *testing.T) { test(site{t, c}) })
	}
}

func bounds(s site) {
	s.namespace("bounded", map[string]string{"gpuslice.io/max-vram": "16Gi"})
	const words = "each request of vram.gpuslice.io and elastic.gpuslice.io in this namespace must name capacity.requests.memory of at most 16Gi"
	s.until("the bound is in force", func() error {
		_, err := s.claim("bounded", "c", request("17Gi"))
		return refused(err, words)
	})
	for _, devices := range []string{
		request(""),
		request("16385Mi"),
		strings.ReplaceAll(request("17Gi"), "vram.gpuslice.io", "elastic.gpuslice.io"),
		`{requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 8Gi}}},
			{name: b, deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 32Gi}}}]}]}`,
		`{requests: [{name: small, exactly: {deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 1Gi}}}},
			{name: large, exactly: {deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 20Gi}}}}]}`,
	} {
		_, err := s.claim("bounded", "c", devices)
		s.wrong(refused(err, words), devices)
		_, err = s.template("bounded", devices)
		s.wrong(refused(err, words), devices)
	}
	for _, devices := range []string{
		request("16Gi"),
		request("17179869184"),
		`{requests: [{name: other, exactly: {deviceClassName: other.io}}]}`,
		`{}`,
	} {
		_, err := s.claim("bounded", "c", devices)
		s.wrong(err, devices)
		_, err = s.template("bounded", devices)
		s.wrong(err, devices)
	}
	for size, want := range map[string]string{"16": "", "17": "an extended resource gpuslice.io/vram-… in this namespace may have at most 16Gi", "1024": "at most 16Gi"} {
		_, err := s.claim("bounded", "c", `{requests: [{name: a, exactly: {deviceClassName: vram-`+size+`gi.gpuslice.io}}]}`)
		if want != "" {
			err = refused(err, want)
		}
		s.wrong(err, size)
	}
	s.namespace("unbounded", nil)
	_, err := s.claim("unbounded", "c", request("1Ti"))
	s.wrong(err, "a namespace without a bound")
	s.namespace("misbounded", map[string]string{"gpuslice.io/max-vram": "much"})
	s.until("the namespace is known", func() error {
		_, err = s.claim("misbounded", "c", request("1Gi"))
		return refused(err, `the namespace label gpuslice.io/max-vram "much" is no size: one such as "16Gi" is accepted`)
	})
}

func (s site) wrong(err error, of string) {
	s.Helper()
	if err != nil {
		s.Errorf("%s: %v", of, err)
	}
}

func defaults(s site) {
	s.namespace("defaulted", map[string]string{"gpuslice.io/default-vram": "4Gi", "gpuslice.io/max-vram": "16Gi"})
	memory := func(r *resourceapi.CapacityRequirements) string {
		if r == nil {
			return "none"
		}
		q := r.Requests["memory"]
		return q.String()
	}
	s.until("the default is in force", func() error {
		c, err := s.claim("defaulted", "c", request(""))
		if err == nil && memory(c.Spec.Devices.Requests[0].Exactly.Capacity) != "4Gi" {
			err = fmt.Errorf("it has %s", memory(c.Spec.Devices.Requests[0].Exactly.Capacity))
		}
		return err
	})
	got, err := s.template("defaulted", `{requests: [
		{name: none, exactly: {deviceClassName: vram.gpuslice.io}},
		{name: own, exactly: {deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 2Gi}}}},
		{name: other, exactly: {deviceClassName: other.io}},
		{name: list, firstAvailable: [{name: a, deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: 8Gi}}}, {name: b, deviceClassName: vram.gpuslice.io}]}]}`)
	s.must(err)
	var sizes []string
	for _, r := range got.Spec.Spec.Devices.Requests {
		if r.Exactly != nil {
			sizes = append(sizes, memory(r.Exactly.Capacity))
		}
		for _, a := range r.FirstAvailable {
			sizes = append(sizes, memory(a.Capacity))
		}
	}
	if want := "4Gi 2Gi none 8Gi 4Gi"; strings.Join(sizes, " ") != want {
		s.Errorf("got %v, want %s", sizes, want)
	}
	// The policy changes no claim for extended resources: the scheduler has allocated it already.
	allocated := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}}}
	s.must(yaml.UnmarshalStrict([]byte(request("")), &allocated.Spec.Devices))
	_, err = s.Client.ResourceV1().ResourceClaims("defaulted").Create(s.Context(), allocated, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	s.wrong(refused(err, "of at most 16Gi; an extended resource cannot: use a claim, or a resource with a size"), "a claim for an extended resource")
	s.namespace("misdefaulted", map[string]string{"gpuslice.io/default-vram": "much"})
	const words = `the namespace label gpuslice.io/default-vram "much" is no size: one such as "4Gi" is accepted`
	s.until("the namespace is known", func() error {
		_, err := s.claim("misdefaulted", "c", request(""))
		return refused(err, words)
	})
	_, err = s.template("misdefaulted", request("1Gi"))
	s.wrong(refused(err, words), "a template")
}

// configuration compares the policy with the driver's own check.
func configuration(s site) {
	const head = `"apiVersion":"gpuslice.io/v1","kind":"ClaimConfig"`
	opaque := func(text string) resourceapi.DeviceConfiguration {
		return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: config.Driver, Parameters: runtime.RawExtension{Raw: []byte(text)}}}
	}
	s.namespace("configured", nil)
	in := func(class bool, text string) error {
		if class {
			_, err := s.Client.ResourceV1().DeviceClasses().Create(s.Context(), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "class"},
				Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: opaque(text)}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "vram.gpuslice.io"}}}
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(text)}}
		_, err := s.Client.ResourceV1().ResourceClaims("configured").Create(s.Context(), claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	s.until("the policy is in force", func() error {
		return refused(in(false, `{}`), "apiVersion gpuslice.io/v1 and kind ClaimConfig are accepted")
	})
	for text, words := range map[string]string{
		`{"kind":"ClaimConfig"}`:                                    "apiVersion gpuslice.io/v1 and kind ClaimConfig are accepted",
		`{"apiVersion":"gpuslice.io/v2","kind":"ClaimConfig"}`:      "apiVersion gpuslice.io/v1 and kind ClaimConfig are accepted",
		`{` + head + `}`:                                            "",
		`{` + head + `,"vram":"4G"}`:                                "apiVersion, kind, mode, ttl, tenant, elastic and priority are accepted, and no other field",
		`{` + head + `,"elastic":true}`:                             "",
		`{` + head + `,"elastic":null,"priority":null}`:             "",
		`{` + head + `,"elastic":"true"}`:                           "elastic is true or false",
		`{` + head + `,"elastic":1}`:                                "elastic is true or false",
		`{` + head + `,"priority":-5}`:                              "", // different for a claim: below
		`{` + head + `,"priority":-1001}`:                           "a priority from -1000 to 1000 is accepted",
		`{` + head + `,"priority":1.5}`:                             "a priority from -1000 to 1000 is accepted",
		`{` + head + `,"priority":"5"}`:                             "a priority from -1000 to 1000 is accepted",
		`{` + head + `,"mode":"enforce"}`:                           "",
		`{` + head + `,"mode":null,"ttl":null,"tenant":null}`:       "",
		`{` + head + `,"mode":"record"}`:                            "mode enforce is accepted, the one mode",
		`{` + head + `,"mode":7}`:                                   "mode, ttl and tenant are texts",
		`{` + head + `,"ttl":90}`:                                   "mode, ttl and tenant are texts",
		`{` + head + `,"tenant":["a"]}`:                             "mode, ttl and tenant are texts",
		`{` + head + `,"ttl":"12h"}`:                                "",
		`{` + head + `,"ttl":"1h30m0.5s"}`:                          "",
		`{` + head + `,"ttl":"1s"}`:                                 "",
		`{` + head + `,"ttl":"876000h"}`:                            "",
		`{` + head + `,"ttl":"90m"}`:                                "",
		`{` + head + `,"ttl":"999ms"}`:                              "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"876001h"}`:                            "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"9999999999999999h"}`:                  "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"soon"}`:                               "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":""}`:                                   "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"-1h"}`:                                "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"7d"}`:                                 "",
		`{` + head + `,"ttl":"1d12h"}`:                              "",
		`{` + head + `,"ttl":"36500d"}`:                             "",
		`{` + head + `,"ttl":"36500d1s"}`:                           "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"99999d"}`:                             "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"0d"}`:                                 "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"ttl":"d"}`:                                  "a ttl from 1s to 876000h is accepted",
		`{` + head + `,"tenant":"physics"}`:                         "", // different for a claim: below
		`{` + head + `,"tenant":"a b"}`:                             "a tenant has 1 to 63 letters",
		`{` + head + `,"tenant":""}`:                                "a tenant has 1 to 63 letters",
		`{` + head + `,"tenant":"` + strings.Repeat("x", 64) + `"}`: "a tenant has 1 to 63 letters",
	} {
		for _, class := range []bool{true, false} {
			source, want := resourceapi.AllocationConfigSourceClass, words
			if !class {
				source = resourceapi.AllocationConfigSourceClaim
				if strings.Contains(text, `"tenant":"`) {
					want = "a claim may not name its tenant"
				}
				if strings.Contains(text, `"priority":`) && !strings.Contains(text, `"priority":null`) {
					want = "a claim may not name its priority"
				}
			}
			err := in(class, text)
			if want != "" {
				s.wrong(refused(err, want), text)
			} else {
				s.wrong(err, text)
			}
			claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: source, DeviceConfiguration: opaque(text)}}
			if _, driver := config.ForRequest(claim, "gpu"); (driver == nil) != (err == nil) {
				s.Errorf("%s (%s): the driver says %v, the policy %v", text, source, driver, err)
			}
		}
	}
	foreign := opaque(`{"anything":1}`)
	foreign.Opaque.Driver = "other.io"
	_, err := s.Client.ResourceV1().DeviceClasses().Create(s.Context(), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "class"},
		Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: foreign}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	s.wrong(err, "another driver's")
}

// pod creates a pod as a dry run and returns the admitted one.
func (s site) pod(namespace, text string) (*corev1.Pod, error) {
	s.Helper()
	p := &corev1.Pod{}
	s.must(yaml.UnmarshalStrict([]byte(text), p))
	p.Name = "pod"
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Name, p.Spec.Containers[i].Image = fmt.Sprintf("c%d", i), "image"
	}
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].Name, p.Spec.InitContainers[i].Image = fmt.Sprintf("i%d", i), "image"
	}
	return s.Client.CoreV1().Pods(namespace).Create(s.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

const gpumem = `spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}]}`

// enabled creates a namespace in which pods are translated or rejected. It waits for the two policies separately.
func (s site) enabled(name string) {
	s.Helper()
	s.namespace(name, map[string]string{"gpuslice.io/aliases": "enabled"})
	s.until("the aliases are in force", func() error {
		p, err := s.pod(name, gpumem)
		if err == nil && p.Annotations["gpuslice.vram"] == "" {
			err = fmt.Errorf("no annotation")
		}
		return err
	})
	s.until("what is not translated is refused", func() error {
		_, err := s.pod(name, `spec: {containers: [{resources: {limits: {nvidia.com/gpucores: 30}}}]}`)
		return refused(err, "nvidia.com/gpucores is not translated")
	})
}

func aliases(s site) {
	s.enabled("elsewhere")
	for text, vram := range map[string]string{
		gpumem: "3000Mi",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}}}]}`:                      "50%",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}, env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "4096"}]}]}`: "4096Mi",
		`metadata: {annotations: {team: physics}}
spec: {containers: [{}, {resources: {limits: {nvidia.com/gpumem: 2k}}}], initContainers: [{resources: {limits: {nvidia.com/gpumem: 2000}}}]}`: "2000Mi",
		`spec: {containers: [{}], initContainers: [{resources: {limits: {nvidia.com/gpumem: 1000}, requests: {nvidia.com/gpumem: 1000}}}]}`: "1000Mi",
		`spec: {containers: [{}], initContainers: [{}, {restartPolicy: Always, resources: {limits: {nvidia.com/gpumem-percentage: 25}}}]}`:  "25%",
		`spec: {containers: [{}], initContainers: [{restartPolicy: Always, env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "512"}]}]}`:         "512Mi",
		`spec: {containers: [{env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "700"}]}], initContainers: [{resources: {limits: {nvidia.com/gpumem: 700}}},
			{restartPolicy: Always, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 700}}}]}`: "700Mi",
		`metadata: {annotations: {gpuslice.vram: 3000Mi, gpuslice.ttl: 1h}}
spec: {runtimeClassName: gpuslice, containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}]}`: "3000Mi",
	} {
		p, err := s.pod("elsewhere", text)
		if err != nil {
			s.Errorf("%s: %v", text, err)
			continue
		}
		if p.Annotations["gpuslice.vram"] != vram || p.Spec.RuntimeClassName == nil || *p.Spec.RuntimeClassName != "gpuslice" {
			s.Errorf("%s: gpuslice.vram %q and RuntimeClass %v, want %s", text, p.Annotations["gpuslice.vram"], p.Spec.RuntimeClassName, vram)
		}
		left, err := json.Marshal(p.Spec)
		s.must(err)
		if strings.Contains(string(left), "gpumem") {
			s.Errorf("%s: HAMi's resource is left, which no node has: %s", text, left)
		}
		if strings.Contains(text, "nvidia.com/gpu:") && !strings.Contains(string(left), `"nvidia.com/gpu":"1"`) {
			s.Errorf("%s: the GPU itself is gone", text)
		}
		if strings.Contains(text, "physics") != (p.Annotations["team"] == "physics") {
			s.Errorf("%s: annotations %v", text, p.Annotations)
		}
	}
	plain := `spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}`
	if p, err := s.pod("elsewhere", plain); err != nil || p.Spec.RuntimeClassName != nil || len(p.Annotations) != 0 {
		s.Errorf("a pod without a size: %v, %v", p, err)
	}
	s.namespace("not-asked", nil)
	if p, err := s.pod("not-asked", gpumem); err != nil || p.Spec.RuntimeClassName != nil || len(p.Annotations) != 0 {
		s.Errorf("in a namespace that did not ask for it: %v, %v", p, err)
	}
}

func aliasesRefused(s site) {
	s.enabled("elsewhere-refused")
	for text, words := range map[string]string{
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}}}]}`:                                            "nvidia.com/gpucores is not translated: gpuslice bounds memory, not compute time",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem-percentage: 150}}}]}`:                                                           "nvidia.com/gpumem-percentage from 1 to 100",
		`spec: {containers: [{env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: 4G}]}]}`:                                                                  "accepted as whole MiB",
		`spec: {containers: [{env: [{name: NVIDIA_GPU_MEMORY_LIMIT, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}`:                          "accepted as whole MiB",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}, {resources: {limits: {nvidia.com/gpumem: 4000}}}]}`:                   "the containers name different sizes",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000, nvidia.com/gpumem-percentage: 50}}}]}`:                                   "the containers name different sizes",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}], initContainers: [{resources: {limits: {nvidia.com/gpumem: 4000}}}]}`: "the containers name different sizes",
		`spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}],
initContainers: [{restartPolicy: Always, env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "4000"}]}]}`: "the containers name different sizes",
		`spec: {containers: [{}], initContainers: [{restartPolicy: Always, resources: {limits: {nvidia.com/gpumem-percentage: 50, nvidia.com/gpucores: 30}}}]}`: "nvidia.com/gpucores is not translated",
		`spec: {containers: [{}], initContainers: [{restartPolicy: Always, env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: 4G}]}]}`:                                "accepted as whole MiB",
		`spec: {runtimeClassName: nvidia, containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}]}`:                                                      `runtimeClassName "nvidia" is not gpuslice`,
		`metadata: {annotations: {gpuslice.vram: 40G}}
spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 3000}}}]}`: "the pod's annotations gpuslice.vram say something else",
		`metadata: {annotations: {gpuslice.vram.0: 40G}}
spec: {runtimeClassName: gpuslice, containers: [{env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "3000"}]}]}`: "the pod's annotations gpuslice.vram say something else",
		`spec: {resourceClaims: [{name: vram, resourceClaimName: vram}], containers: [{resources: {limits: {nvidia.com/gpumem: 3000}, claims: [{name: vram}]}}]}`: "GPU memory is requested in two ways",
	} {
		// The API server looks up the RuntimeClass before it calls the policy.
		if strings.Contains(text, "nvidia, ") {
			_, err := s.Kubectl(`{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}`, "apply", "-f", "-")
			s.must(err)
		}
		s.until(text, func() error {
			_, err := s.pod("elsewhere-refused", text)
			if err != nil && strings.Contains(err.Error(), "RuntimeClass \"nvidia\" not found") {
				return err
			}
			s.wrong(refused(err, words), text)
			return nil
		})
	}
}

// aliasesInDebugging: a debug container belongs to the slice that the pod's annotation names.
func aliasesInDebugging(s site) {
	s.enabled("elsewhere-debugged")
	pods := s.Client.CoreV1().Pods("elsewhere-debugged")
	for name, limits := range map[string]corev1.ResourceList{"translated": {"nvidia.com/gpumem": resource.MustParse("3000")}, "plain": nil} {
		_, err := pods.Create(s.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "image", Resources: corev1.ResourceRequirements{Limits: limits}}},
		}}, metav1.CreateOptions{})
		s.must(err)
	}
	debug := func(pod string, env ...corev1.EnvVar) error {
		p, err := pods.Get(s.Context(), pod, metav1.GetOptions{})
		s.must(err)
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debugger", Image: "image", Env: env,
		}}}
		_, err = pods.UpdateEphemeralContainers(s.Context(), pod, p, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	limit := func(value string) corev1.EnvVar { return corev1.EnvVar{Name: "NVIDIA_GPU_MEMORY_LIMIT", Value: value} }
	s.wrong(debug("translated"), "without a size")
	s.wrong(debug("plain"), "without a size, in a pod without one")
	s.wrong(debug("translated", limit("3000")), "the pod's size")
	s.wrong(refused(debug("translated", limit("9000")), "the pod's annotations gpuslice.vram say something else"), "another size")
	s.wrong(refused(debug("translated", limit("9G")), "accepted as whole MiB"), "no size")
	s.wrong(refused(debug("plain", limit("3000")), "the pod's annotations gpuslice.vram say something else"), "a size in a pod without one")
}

const account = "system:serviceaccount:gpuslice:gpuslice-dra"

// as returns a client with the rights of the driver on a node, or without a node for "".
func (s site) as(node string) kubernetes.Interface {
	s.Helper()
	c := rest.CopyConfig(s.Admin)
	c.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:gpuslice", "system:authenticated"}}
	if node != "" {
		c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client, err := kubernetes.NewForConfig(c)
	s.must(err)
	return client
}

func (s site) slice(node, driver string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(node+"-"+driver, ".", "-")}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
}

func ownNode(s site) {
	const words = `the driver on node "n1" may write the ResourceSlices of gpuslice.io on that node only`
	own, ctx := s.as("n1").ResourceV1().ResourceSlices(), s.Context()
	s.until("the policy is in force", func() error {
		_, err := own.Create(ctx, s.slice("n2", config.Driver), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refused(err, words)
	})
	mine, err := own.Create(ctx, s.slice("n1", config.Driver), metav1.CreateOptions{})
	s.must(err)
	mine.Labels = map[string]string{"a": "b"}
	_, err = own.Update(ctx, mine, metav1.UpdateOptions{})
	s.wrong(err, "its own")
	_, err = own.Create(ctx, s.slice("n1", "other.io"), metav1.CreateOptions{})
	s.wrong(refused(err, words), "another driver's")

	other, err := s.Client.ResourceV1().ResourceSlices().Create(ctx, s.slice("n2", config.Driver), metav1.CreateOptions{})
	s.must(err)
	other.Labels = map[string]string{"a": "b"}
	_, err = own.Update(ctx, other, metav1.UpdateOptions{})
	s.wrong(refused(err, words), "update")
	s.wrong(refused(own.Delete(ctx, other.Name, metav1.DeleteOptions{}), words), "delete")
	s.wrong(refused(own.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), "forbidden"), "delete all")
	_, err = s.as("").ResourceV1().ResourceSlices().Create(ctx, s.slice("n3", config.Driver), metav1.CreateOptions{})
	s.wrong(refused(err, `the driver on node ""`), "a token without a node")
	s.wrong(own.Delete(ctx, mine.Name, metav1.DeleteOptions{}), "its own")
}

// rights queries the authorizer about everything that the driver might do.
func rights(s site) {
	may := func(group, resource, sub, name, namespace, verb string) bool {
		s.Helper()
		review, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(s.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:gpuslice", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: resource, Subresource: sub, Name: name, Namespace: namespace, Verb: verb},
		}}, metav1.CreateOptions{})
		s.must(err)
		return review.Status.Allowed
	}
	allowed := map[string]string{
		"/nodes":                                "get",
		"resource.k8s.io/resourceslices":        "get list watch create update patch delete",
		"resource.k8s.io/resourceclaims":        "get",
		"resource.k8s.io/resourceclaims/status": "patch",
		"resource.k8s.io/resourceclaims/driver": "associated-node:patch associated-node:update",
		"/events":                               "create",
	}
	s.until("the rights are known", func() error {
		if !may("resource.k8s.io", "resourceclaims", "", "c", "n", "get") {
			return fmt.Errorf("a claim may not be read")
		}
		return nil
	})
	for _, resource := range []string{
		"/nodes", "/nodes/status", "/nodes/proxy", "/pods", "/pods/exec", "/pods/status", "/pods/eviction", "/secrets", "/configmaps", "/serviceaccounts/token", "/events", "/namespaces",
		"apps/daemonsets", "rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/clusterrolebindings", "authorization.k8s.io/subjectaccessreviews",
		"admissionregistration.k8s.io/validatingadmissionpolicies", "resource.k8s.io/deviceclasses", "resource.k8s.io/resourceclaimtemplates",
		"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaims", "resource.k8s.io/resourceclaims/status", "resource.k8s.io/resourceclaims/driver",
		"resource.k8s.io/resourceclaims/binding", "resource.k8s.io/devicetaintrules",
	} {
		group, rest, _ := strings.Cut(resource, "/")
		kind, sub, _ := strings.Cut(rest, "/")
		name := "x"
		if sub == "driver" {
			name = config.Driver
			if may(group, kind, sub, "other.io", "n", "associated-node:update") {
				s.Error("it may write the status of another driver's devices")
			}
		}
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "bind", "escalate",
			"associated-node:update", "associated-node:patch", "arbitrary-node:update", "arbitrary-node:patch"} {
			want := strings.Contains(" "+allowed[resource]+" ", " "+verb+" ")
			if got := may(group, kind, sub, name, "n", verb); got != want {
				s.Errorf("%s %s: allowed %v, want %v", verb, resource, got, want)
			}
		}
	}
}

// claimStatus: the API server itself limits a driver to the claims of its own node.
func claimStatus(s site) {
	ctx := context.WithoutCancel(s.Context())
	s.namespace("status", nil)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}}
	s.must(yaml.UnmarshalStrict([]byte(request("4Gi")), &claim.Spec.Devices))
	claims := s.Client.ResourceV1().ResourceClaims("status")
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	s.must(err)
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: config.Driver, Pool: "n1", Device: "gpu-0"}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}}}},
	}
	claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	s.must(err)
	patch := []byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"claim","namespace":"status","uid":"` + string(claim.UID) + `"},
		"status":{"devices":[{"driver":"gpuslice.io","pool":"n1","device":"gpu-0","data":{"granted":"4Gi"}}]}}`)
	apply := func(node string) error {
		_, err := s.as(node).ResourceV1().ResourceClaims("status").Patch(ctx, "claim", types.ApplyPatchType, patch,
			metav1.PatchOptions{FieldManager: "gpuslice", Force: new(true)}, "status")
		return err
	}
	s.wrong(refused(apply("n2"), "forbidden"), "the driver of another node")
	s.wrong(apply("n1"), "the driver of the claim's node")
}
