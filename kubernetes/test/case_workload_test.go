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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// workload is an object with pods, and the texts that its pods' logs and events must have, each as often as listed.
type workload struct {
	name, kind string
	spec       string // of the object, without that of its pods
	pod        string
	want       []string
}

// small is the quota of the pods below. They ask for more, and keep half of it.
const small = 2 * gib

// keeps is the output of a container that keeps to its quota.
var keeps = "refused 2\n" + holds(small/2, small)

// words are abbreviations in the specs.
var words = strings.NewReplacer(
	"$node", "terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, hostNetwork: true",
	"$pod", "restartPolicy: Never, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, hostNetwork: true",
	"$claim", "resourceClaims: [{name: vram, resourceClaimTemplateName: small}]",
	"$image", "image: "+imageRef("debian")+", imagePullPolicy: Never",
	"$asks", fmt.Sprintf("/demo/cuda_hog %d >/dev/null; echo refused $?", small+gib),
	"$keeps", fmt.Sprintf("exec /demo/cuda_hog %d", small/2),
	"$once", strings.ReplaceAll(hogOnce(small/2), `"`, `\"`),
	"$uses", "resources: {claims: [{name: vram}]}",
	"$hog", `name: a, $image, command: [/bin/sh, -c, "$asks; $keeps"], $uses`,
	"$none", "ls -d /dev/nvidia* /.gpuslice /demo || echo none",
)

func (s workload) yaml() string {
	pod := words.Replace(words.Replace(s.pod))
	spec := fmt.Sprintf("%s, template: {metadata: {labels: {app: %s}}, spec: {%s}}", s.spec, s.name, pod)
	version := "batch/v1"
	switch s.kind {
	case "Pod":
		version, spec = "v1", pod
	case "CronJob":
		spec = fmt.Sprintf(`schedule: "0 0 1 1 *", jobTemplate: {spec: {%s}}`, spec)
	case "Deployment", "StatefulSet":
		version, spec = "apps/v1", spec+fmt.Sprintf(", selector: {matchLabels: {app: %s}}", s.name)
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, labels: {app: %[3]s}}\nspec: {%[4]s}\n", version, s.kind, s.name, spec)
}

// applyAndWait applies all manifests at once, and waits for the wanted output of each.
func (n *node) applyAndWait(all []workload) {
	n.t.Helper()
	var text []string
	for _, s := range all {
		text = append(text, s.yaml())
	}
	_, err := n.plane.Kubectl(strings.Join(text, "---\n"), "--namespace="+n.ns, "apply", "-f", "-")
	n.Must(err)
	for _, s := range all {
		if s.kind == "CronJob" { // now, rather than at its time
			_, err := n.plane.Kubectl("", "--namespace="+n.ns, "create", "job", s.name+"-now", "--from=cronjob/"+s.name)
			n.Must(err)
		}
	}
	for _, s := range all {
		n.eventually(s.name+" has its wanted output", func() error {
			seen := n.seen(s.name)
			for _, text := range s.want {
				if want := len(s.want) - len(slices.DeleteFunc(slices.Clone(s.want), func(other string) bool { return other == text })); strings.Count(seen, text) < want {
					return fmt.Errorf("%q is not there %d times: %s", text, want, seen)
				}
			}
			return nil
		})
	}
}

// seen returns the logs and events of the pods with the label app=name.
func (n *node) seen(name string) string {
	list, err := n.kube.CoreV1().Pods(n.ns).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, p := range list.Items {
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			text, _ := n.logs(p.Name, c.Name) // there are none before the container starts
			all = append(all, text)
		}
		all = append(all, string(p.Status.Phase), n.events(p.Name))
	}
	return strings.Join(all, "\n")
}

// withdraw deletes what makes pods, and then the pods, which have no time to end by themselves.
func (n *node) withdraw() {
	n.t.Helper()
	_, err := n.plane.Kubectl("", "--namespace="+n.ns, "delete", "deployments,replicasets,statefulsets,jobs,cronjobs", "--all", "--cascade=orphan")
	n.Must(err)
	n.empty()
}

const once = `$pod, $claim, containers: [{name: a, $image, command: [/bin/sh, -c, "$once"], $uses}]`

var workloads = []workload{
	{"deployment", "Deployment", "replicas: 2", `$node, $claim, containers: [{$hog}]`,
		[]string{keeps, keeps}},
	{"set", "StatefulSet", "replicas: 2", `$node, $claim, containers: [{$hog}]`,
		[]string{keeps, keeps}},
	{"job", "Job", "completions: 3, parallelism: 2", once,
		[]string{holds(small/2, small), holds(small/2, small), holds(small/2, small), "Succeeded", "Succeeded", "Succeeded"}},
	{"cron", "CronJob", "parallelism: 1", once, []string{holds(small/2, small), "Succeeded"}},
	{"init", "Pod", "", `$pod, $claim, initContainers: [{name: i, $image, command: [/bin/sh, -c, "$once"], $uses}, {name: s, $image, command: [/bin/sh, -c, "$asks; $keeps"],
		$uses, restartPolicy: Always}, {name: t, $image, command: [/bin/sh, -c, "$none"]}], containers: [{name: a, $image, command: [/bin/sh, -c, "$asks; sleep 1000"], $uses}]`,
		[]string{holds(small/2, small), keeps, "none", "refused 2", "refused 2"}},
	{"beside", "Pod", "", `$pod, $claim, containers: [{$hog}, {name: b, $image, command: [/bin/sh, -c, "$none; sleep 1000"]}]`,
		[]string{keeps, "none"}},
	{"two-claims", "Pod", "", `$pod, resourceClaims: [{name: one, resourceClaimTemplateName: first-card}, {name: two, resourceClaimTemplateName: first-card}], containers: [
		{name: a, $image, command: [/bin/sh, -c, "$asks; $keeps"], resources: {claims: [{name: one}]}},
		{name: b, $image, command: [/bin/sh, -c, "$asks; $keeps"], resources: {claims: [{name: two}]}}]`, []string{keeps, keeps}},
	{"product", "Pod", "", `$pod, resourceClaims: [{name: vram, resourceClaimTemplateName: product}], containers: [{$hog}]`,
		[]string{keeps}},
	{"no-product", "Pod", "", `$pod, resourceClaims: [{name: vram, resourceClaimTemplateName: no-product}], containers: [{name: a, $image, command: [/bin/true], $uses}]`,
		[]string{"Pending", "cannot allocate all claims"}},
	{"host-pid", "Pod", "", `$pod, hostPID: true, $claim, containers: [{$hog}]`, []string{keeps}},
	{"privileged", "Pod", "", `$pod, $claim, containers: [{$hog, securityContext: {privileged: true}}]`, []string{keeps}},
	{"preload", "Pod", "", `$pod, $claim, containers: [{$hog, env: [{name: LD_PRELOAD, value: /lib/x86_64-linux-gnu/libm.so.6}]}]`,
		[]string{keeps}},
	{"musl", "Pod", "", `$pod, $claim, containers: [{name: a, image: ` + imageRef("musl") + `, command: [/bin/sh, -c, "dynamic && static"], $uses}]`,
		[]string{"all well", "all well", "Succeeded", "Started: "}},
	{"static", "Pod", "", `$pod, $claim, containers: [{name: a, image: ` + imageRef("static") + `, command: [/gpuslice-dra, --version], $uses}]`,
		[]string{"gpuslice-dra ", "Succeeded", "Started: "}},
	{"user-namespace", "Pod", "", `restartPolicy: Never, hostUsers: false, $claim, containers: [{$hog}]`, []string{keeps}},
}

// templates are those of the workloads.
const templates = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: vram.gpuslice.io, capacity: {requests: {memory: %s}}, selectors: [{cel: {expression: %s}}]}}]}}}
`

func workloadsKeepQuotas(n *node) {
	defer n.withdraw()
	n.image(imageRef("musl"), n.engine("images", "musl.tar"), testhost.ImageConfig{})
	n.build("gpuslice-dra", imageRef("static"), nil) // a static program, and nothing else
	card := n.resourceSlices()[0].Spec.Devices[0]
	for name, selector := range map[string]string{
		"small": "true", "first-card": `device.attributes["gpuslice.io"].index == 0`,
		"product": fmt.Sprintf(`device.attributes["gpuslice.io"].productName == %q && device.capacity["gpuslice.io"].memory.compareTo(quantity("70Gi")) > 0`,
			*card.Attributes["productName"].StringValue),
		"no-product": `device.attributes["gpuslice.io"].productName == "another"`,
	} {
		_, err := n.plane.Kubectl(fmt.Sprintf(templates, name, fmt.Sprint(small), "'"+selector+"'"), "--namespace="+n.ns, "apply", "-f", "-")
		n.Must(err)
	}
	n.applyAndWait(workloads)

	// A container for debugging cannot name a claim, and has nothing of it.
	out, err := n.plane.Kubectl("", "--namespace="+n.ns, "debug", "beside", "--image="+imageRef("debian"), "--image-pull-policy=Never", "--profile=general", "--container=d",
		"--", "/bin/sh", "-c", words.Replace("$none"))
	if err != nil {
		n.t.Error(out, err)
	}
	n.wrote("beside", "d", "none")
}

// restricted: a claim needs nothing that the strictest Pod Security forbids.
func restricted(n *node) {
	n.label("pod-security.kubernetes.io/enforce", "restricted")
	n.template("small", request("gpu", fmt.Sprint(small)))
	n.applyAndWait([]workload{{"plain", "Pod", "", `restartPolicy: Never, $claim, securityContext: {runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}}, containers: [
		{$hog,
		securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]`, []string{keeps}}})
	p := n.pod("socket", []string{"small"}, container("a", sleep, "small"))
	p.Spec.Volumes = []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: n.in("run")}}}}
	if _, err := n.kube.CoreV1().Pods(n.ns).Create(context.Background(), p, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		n.t.Errorf("a pod with gpusliced's directory: %v", err)
	}
}

// A pod that does not fit waits, and its events say why.
func sharesOfACard(n *node) {
	defer n.withdraw()
	whole := n.memory() / mib

	for name, size := range map[string]uint64{"half": whole / 2, "third": whole * 3 / 10} {
		selector := "'true'"
		if name == "half" {
			selector = `'device.attributes["gpuslice.io"].index == 0'`
		}
		_, err := n.plane.Kubectl(fmt.Sprintf(templates, name, fmt.Sprint(size, "Mi"), selector), "--namespace="+n.ns, "apply", "-f", "-")
		n.Must(err)
	}
	const pending = "cannot allocate all claims"
	n.applyAndWait([]workload{{"half", "Deployment", "replicas: 3", `$node, resourceClaims: [{name: vram, resourceClaimTemplateName: half}],
		containers: [{name: a, $image, command: [/demo/cuda_hog, "1073741824"], $uses}]`,
		[]string{holds(gib, whole/2*mib), holds(gib, whole/2*mib), "Pending", pending}}})
	n.withdraw()
	share := holds(gib, whole*3/10*mib)
	n.applyAndWait([]workload{{"third", "Deployment", "replicas: 7", `$node, resourceClaims: [{name: vram, resourceClaimTemplateName: third}],
		containers: [{name: a, $image, command: [/demo/cuda_hog, "1073741824"], $uses}]`,
		append(slices.Repeat([]string{share}, 6), "Pending", pending)}})
	n.eventually("each card has three", func() error {
		devices, err := n.Client.Devices(context.Background())
		for _, d := range devices {
			if len(d.Pools) != 3 {
				err = errors.Join(err, fmt.Errorf("device %d has %v", d.Index, d.Pools))
			}
		}
		return err
	})
}
