//go:build cluster

// SPDX-License-Identifier: Apache-2.0

// Package chart compares the Helm chart with the kustomizations from which it is generated, with the real kustomize, Helm and API
// server.
package chart

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
)

const deploy = "../../deploy/"

// run runs a program from test/engines/build.sh's helm, or from $PATH, and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command(t, name, args...).Output()
	if failed, ok := err.(*exec.ExitError); ok {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(tools(t), name), args...)
	cmd.Env = []string{"HOME=" + t.TempDir()} // keep the user's caches and settings out
	return cmd
}

// tools returns the directory of helm and kustomize.
func tools(t *testing.T) string {
	t.Helper()
	return filepath.Join(cluster.Engines(t, "helm"), "helm")
}

func TestTheChartIsMadeFromTheKustomizations(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(deploy+"chart.sh", dir)
	cmd.Env = append(os.Environ(), "KUSTOMIZE="+filepath.Join(tools(t), "kustomize")+" build")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, kept := texts(t, dir), texts(t, deploy+"chart/templates")
	if !maps.Equal(made, kept) {
		t.Errorf("kubernetes/deploy/chart/templates (%v) is not what `make chart` writes (%v)", slices.Sorted(maps.Keys(kept)), slices.Sorted(maps.Keys(made)))
	}
}

func texts(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	all := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(file)] = string(text)
	}
	return all
}

// digest matches a ConfigMap name with the suffix of kustomize or of the chart.
var digest = regexp.MustCompile(`gpuslice-config-[0-9a-z]{10}`)

// objects parses YAML documents into objects by kind and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	for _, document := range strings.Split("\n"+digest.ReplaceAllString(text, "gpuslice-config"), "\n---") {
		var o struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		var whole map[string]any
		for _, into := range []any{&o, &whole} {
			if err := yaml.Unmarshal([]byte(document), into); err != nil {
				t.Fatalf("%v:\n%s", err, document)
			}
		}
		name := o.Kind + " " + o.Metadata.Name
		if _, twice := all[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		if len(whole) > 0 {
			all[name] = whole
		}
	}
	return all
}

// Helm creates the namespace itself.
func TestChartRendersTheKustomizationsManifests(t *testing.T) {
	for name, c := range map[string]struct {
		kustomizations, values []string
	}{
		"gpusliced by package":  {[]string{"host"}, nil},
		"gpusliced in pods":     {[]string{"daemonset"}, []string{"gpuslicedInPods=true"}},
		"with aliases":          {[]string{"host", "aliases"}, []string{"aliases=true"}},
		"by make install":       {[]string{"base"}, []string{"hook=/usr/local/bin/gpuslice-hook"}},
		"in pods, with aliases": {[]string{"daemonset", "aliases"}, []string{"gpuslicedInPods=true,aliases=true"}},
		"elastic":               {[]string{component(t, "host", "elastic")}, []string{"elastic=true"}},
		"a size":                {[]string{component(t, "host", "sizes")}, []string{"sizes={8Gi}"}},
		"a default memory":      {[]string{component(t, "host", "default-memory")}, []string{"defaultMemory=8Gi"}},
		"all of them, in pods": {[]string{component(t, "daemonset", "sizes", "default-memory", "elastic")},
			[]string{"gpuslicedInPods=true,elastic=true,defaultMemory=8Gi,sizes={8Gi}"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := make(map[string]any)
			for _, k := range c.kustomizations {
				if !filepath.IsAbs(k) {
					k = deploy + k
				}
				maps.Copy(want, objects(t, run(t, "kustomize", "build", k)))
			}
			delete(want, "Namespace gpuslice")
			if c.kustomizations[0] == "base" { // base leaves the driver's default
				addArgument(t, want["DaemonSet gpuslice-dra"], "--hook=/usr/local/bin/gpuslice-hook")
			}
			args := []string{"template", "release", deploy + "chart", "--namespace=gpuslice"}
			for _, v := range c.values {
				args = append(args, "--set="+v)
			}
			got := objects(t, run(t, "helm", args...))
			for name := range want {
				if got[name] == nil {
					t.Errorf("the chart has no %s", name)
				}
			}
			for name, o := range got {
				if !reflect.DeepEqual(o, want[name]) {
					t.Errorf("the chart has\n%s and kustomize\n%s", text(t, o), text(t, want[name]))
				}
			}
		})
	}
}

// component returns a directory with a kustomization that adds components to an existing one.
func component(t *testing.T, base string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	to, err := filepath.Abs(deploy)
	if err == nil {
		to, err = filepath.Rel(dir, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%[1]s/%[2]s]\ncomponents: [%[1]s/%[3]s]\n",
		to, base, strings.Join(names, ", "+to+"/"))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func addArgument(t *testing.T, daemonset any, argument string) {
	t.Helper()
	o := daemonset.(map[string]any)
	for _, name := range []string{"spec", "template", "spec"} {
		o = o[name].(map[string]any)
	}
	c := o["containers"].([]any)[0].(map[string]any)
	c["args"] = append(c["args"].([]any), argument)
}

func text(t *testing.T, o any) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// values sets each value of the chart to another than its default.
const values = `
images: {driver: registry.test/driver:1, gpusliced: registry.test/gpusliced:1}
imagePullSecrets: [{name: pull}]
hook: /srv/hook
hostDir: /srv/gpuslice
driverRoot: /srv/driver
driverArgs: [--driver-libraries=/srv/libraries]
nodeSelector: {gpu: "true"}
tolerations: [{key: tolerated, operator: Exists}]
defaultMemory: 6Gi
sizes: [8Gi, 16Gi]
`

func TestEachValueOfTheChartIsInItsPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "helm", "lint", "--strict", deploy+"chart", "--values="+file)
	for inPods, wants := range map[string]map[string]int{
		"false": {"registry.test/driver:1": 1, "--hook=/srv/hook": 1, "--driver-libraries=/srv/libraries": 1, "gpu: \"true\"": 1, "key: tolerated": 1, "name: pull": 1,
			"--default-memory=6Gi": 1, "--sizes=8Gi,16Gi": 1, "extendedResourceName: gpuslice.io/vram-16gi": 1, "name: vram-8gi.gpuslice.io": 1,
			"/srv/gpuslice": 0, "system:serviceaccount:vram:gpuslice-dra": 1, "namespace: gpuslice": 0},
		"true": {"registry.test/driver:1": 1, "registry.test/gpusliced:1": 2, "--hook=/srv/gpuslice/bin/gpuslice-hook": 1, "/srv/hook": 0, "gpu: \"true\"": 2,
			"key: tolerated": 2, "name: pull": 2, "path: /srv/driver": 1, `library = "/srv/gpuslice/lib/libgpuslice.so"`: 1, "/opt/gpuslice": 0},
	} {
		got := run(t, "helm", "template", "r", deploy+"chart", "--namespace=vram", "--values="+file, "--set=gpuslicedInPods="+inPods)
		for text, n := range wants {
			if is := strings.Count(got, text); is != n {
				t.Errorf("gpuslicedInPods=%s: %q is there %d times, want %d", inPods, text, is, n)
			}
		}
		objects(t, got)
	}
}

func TestAWrongValueOfTheChartIsRefused(t *testing.T) {
	for _, value := range []string{"sizes={8G}", "sizes={512Mi}", "sizes=8Gi", "defaultMemory=much", "defaultMemory=0Gi", "elastic=maybe", "hook=gpuslice-hook", "elastik=true", "images.driver="} {
		out, err := command(t, "helm", "template", "r", deploy+"chart", "--set="+value).CombinedOutput()
		if name, _, _ := strings.Cut(value, "="); err == nil || !strings.Contains(string(out), "values don't meet the specifications") || !strings.Contains(string(out), strings.Split(name, ".")[0]) {
			t.Errorf("%s: %v\n%s", value, err, out)
		}
	}
}

func TestTheChartIsInstalledUpgradedAndRemoved(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	helm := func(args ...string) string {
		t.Helper()
		return run(t, "helm", append(args, "--namespace=vram", "--kubeconfig="+c.Kubeconfig("helm", c.Admin.BearerToken))...)
	}
	count := func(what string, want int) {
		t.Helper()
		sets, err := c.Client.AppsV1().DaemonSets("vram").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(sets.Items) != want {
			t.Errorf("%s: %d DaemonSets, %v; want %d", what, len(sets.Items), err, want)
		}
	}
	helm("install", "gpuslice", deploy+"chart", "--create-namespace")
	count("installed", 1)
	said := helm("upgrade", "gpuslice", deploy+"chart", "--set=gpuslicedInPods=true,aliases=true,defaultMemory=8Gi")
	if !strings.Contains(said, "A claim without a size gets 8Gi.") {
		t.Errorf("the notes do not name the default: %s", said)
	}
	said = helm("upgrade", "gpuslice", deploy+"chart", "--reuse-values", "--set=sizes={16Gi}")
	if !strings.Contains(said, "gets 8Gi.\nA pod without a claim gets 16Gi by the limit gpuslice.io/vram-16gi: 1.") {
		t.Errorf("an upgrade with --reuse-values says %s", said)
	}
	count("with gpusliced in pods", 2)
	policy, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "gpuslice-own-node", metav1.GetOptions{})
	if err != nil || !strings.Contains(fmt.Sprint(policy.Spec.MatchConditions), `"system:serviceaccount:vram:gpuslice-dra"`) {
		t.Errorf("the policy is for another account: %v, %v", policy.Spec.MatchConditions, err)
	}
	helm("rollback", "gpuslice", "1")
	count("rolled back", 1)
	helm("uninstall", "gpuslice")
	count("removed", 0)
	if _, err := c.Client.ResourceV1().DeviceClasses().Get(t.Context(), "vram.gpuslice.io", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DeviceClass stays: %v", err)
	}
}
