//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

// Directories of the overlay "daemonset" on the node.
const (
	hostDir  = "/opt/gpuslice"
	runDir   = "/run/gpuslice"
	stateDir = "/var/lib/gpuslice"
)

// fakeDir has the memory of the simulated cards. A mount below the host's root directory is writable in pods, unlike the directory.
const fakeDir = "/run/fakecuda"

// hostNVML is one of the paths at which the pods look for NVIDIA's library.
const hostNVML = "/opt/nvidia/lib64/libnvidia-ml.so.1"

// overlay is an operator's kustomization. A gpusliced that hangs is found sooner.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- %[1]s
images:
- {name: gpuslice, newName: gpuslice.test/gpuslice, newTag: %[2]q}
- {name: gpuslice-dra, newName: gpuslice.test/gpuslice-dra, newTag: %[2]q}
patches:
- target: {kind: DaemonSet, name: gpusliced}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/livenessProbe/periodSeconds, value: 3}
`

// inPods runs a case with gpusliced and the driver in pods instead of processes of the test.
func inPods(run func(n *node)) func(n *node) {
	return func(n *node) {
		n.bare(func() {
			defer n.undeploy()
			defer n.empty()
			run(n)
		})
	}
}

// bare runs do on a node without gpusliced and the driver.
func (n *node) bare(do func()) {
	was := n.Client
	n.driver.Stop(unix.SIGTERM)
	n.Stop(unix.SIGTERM)
	n.Client = client.New(api.DefaultSocket)
	n.Must(os.MkdirAll(fakeDir, 0o755))
	n.Must(unix.Mount(n.in("fake"), fakeDir, "", unix.MS_BIND, ""))
	defer func() {
		n.Must(unix.Unmount(fakeDir, unix.MNT_DETACH))
		for _, dir := range []string{hostDir, runDir, stateDir, filepath.Dir(hostNVML)} {
			n.Must(os.RemoveAll(dir))
		}
		n.Client = was
		n.manifests()
		n.Start()
		n.startDriver()
	}()
	do()
}

func (n *node) deploy(version string) {
	n.t.Helper()
	wd, err := os.Getwd()
	n.Must(err)
	base, err := filepath.Rel(n.in("deploy"), filepath.Join(wd, "../deploy/daemonset"))
	n.Must(err)
	n.write(n.in("deploy", "kustomization.yaml"), overlay, base, version)
	_, err = n.plane.Kubectl("", "apply", "-k", n.in("deploy"))
	n.Must(err)
}

// rolledOut waits until all pods of the DaemonSets are ready and updated.
func (n *node) rolledOut() {
	n.t.Helper()
	for _, name := range []string{"gpusliced", "gpuslice-dra"} {
		if _, err := n.plane.Kubectl("", "--namespace=gpuslice", "rollout", "status", "daemonset/"+name, "--timeout="+patience.String()); err != nil {
			said, _ := n.plane.Kubectl("", "--namespace=gpuslice", "describe", "pods")
			logs, _ := n.plane.Kubectl("", "--namespace=gpuslice", "logs", "--all-containers", "daemonset/"+name)
			n.t.Fatalf("%v\n%s\n%s", err, said, logs)
		}
	}
}

// undeploy removes the DaemonSets. It keeps the objects that all cases share.
func (n *node) undeploy() {
	n.t.Helper()
	_, err := n.plane.Kubectl("", "--namespace=gpuslice", "delete", "daemonset", "--all", "--cascade=foreground")
	n.Must(err)
	n.eventually("the pods of gpuslice are gone", func() error {
		list, err := n.kube.CoreV1().Pods("gpuslice").List(context.Background(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}

// images builds both images. The library of the second version has no debug information, so it differs.
func (n *node) images(version string) {
	n.t.Helper()
	const script = "kubernetes/deploy/node.sh"
	text, err := os.ReadFile(filepath.Join("../..", script))
	n.Must(err)
	simulated := "set -eu\nexport FAKECUDA_STATE=/driver" + fakeDir + "/state FAKECUDA_DEVICES=2\n"
	instead := map[string]string{script: n.write(n.in("node.sh"), "%s", strings.Replace(string(text), "set -eu\n", simulated, 1))}
	if version != "1" {
		const library = "bin/" + api.LibraryName
		instead[library] = n.in(api.LibraryName)
		n.sh("strip", "-g", "-o", instead[library], filepath.Join("../..", library))
	}
	for _, name := range []string{"gpuslice", "gpuslice-dra"} {
		n.build(name, "gpuslice.test/"+name+":"+version, instead)
	}
}

// driverComes installs the simulated driver's library on the node.
func (n *node) driverComes() {
	n.t.Helper()
	n.Must(os.MkdirAll(filepath.Dir(hostNVML), 0o755))
	n.sh("cp", filepath.Join(n.Bin, "fakecuda", "libnvidia-ml.so.1"), hostNVML)
}

// libraries lists the node's libraries by the names of their directories.
func (n *node) libraries() (names []string) {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(hostDir, "lib", "*-*", api.LibraryName))
	n.Must(err)
	for _, file := range found {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	return names
}

// library returns the library that a pod has bound, likewise.
func (n *node) library(pod string) string {
	n.t.Helper()
	out, err := n.exec(pod, "a", "/bin/grep", " "+api.ContainerDir+"/"+api.LibraryName+" ", "/proc/self/mountinfo")
	n.Must(err)
	words := strings.Fields(out)
	if len(words) < 5 || filepath.Base(words[3]) != api.LibraryName {
		n.t.Fatalf("pod %s has bound %q", pod, out)
	}
	return filepath.Base(filepath.Dir(words[3]))
}

// quotaInPods starts with an empty node and adds NVIDIA's driver: the pods install everything else.
func quotaInPods(n *node) {
	n.images("1")
	n.deploy("1")
	n.rolledOut()
	if _, err := os.Stat(filepath.Join(hostDir, "bin")); !errors.Is(err, os.ErrNotExist) {
		n.t.Errorf("a node without NVIDIA's driver has %s/bin: %v", hostDir, err)
	}
	n.driverComes()
	n.tainted("")
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("one", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("one", "a", holds(2*gib, 4*gib))
	n.refused("one", "a", 2*gib)
	n.sees("one", "a", 4*gib)
	n.told("one", "VRAMRefused")
	out, err := n.plane.Kubectl("", "exec", "-n", "gpuslice", "ds/gpusliced", "--", "gpuslice", "ps")
	if err != nil || !strings.Contains(out, n.ns+"/one/a") {
		n.t.Errorf("gpuslice ps in the pod of gpusliced: %q, %v; want the pod's container", out, err)
	}

	library, before, slice := n.library("one"), n.status("one"), n.slice("one")
	first, err := n.Client.Info(context.Background())
	n.Must(err)
	n.Must(unix.Kill(first.PID, unix.SIGSTOP))
	n.eventually("a gpusliced that hangs is replaced", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		now, err := n.Client.Info(ctx)
		if err == nil && now.Instance == first.Instance {
			err = errors.New("it is the same")
		}
		return err
	})
	n.keeps("one", before, slice, library)
}

// upgradedInPods updates both DaemonSets to another version while a pod runs.
func upgradedInPods(n *node) {
	n.driverComes()
	n.images("1")
	n.deploy("1")
	n.rolledOut()
	n.tainted("")
	n.template("vram", request("gpu", "4Gi"))
	n.claim("shared", request("gpu", "4Gi"))
	n.start(n.pod("stays", []string{"vram=shared"}, container("a", hog(2*gib), "vram")))
	n.wrote("stays", "a", holds(2*gib, 4*gib))
	old, before, slice := n.library("stays"), n.status("stays"), n.slice("stays")

	n.images("2")
	n.deploy("2")
	n.eventually("the former gpusliced has ended", func() error {
		if _, err := n.Client.Info(context.Background()); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	n.create(n.pod("comes", []string{"vram"}, container("a", sleep, "vram")))
	joins := n.pod("joins", []string{"vram=shared"}, container("a", sleep, "vram"))
	joins.Spec.RestartPolicy = corev1.RestartPolicyAlways
	n.create(joins)
	out, err := n.exec("stays", "a", hog(2*gib)...)
	if err == nil || strings.Contains(out, "holds") {
		n.t.Errorf("while gpusliced does not run a pod takes more than its quota: %q, %v", out, err)
	}
	n.rolledOut()
	n.running("comes")
	n.sees("comes", "a", 4*gib)
	newer := n.library("comes")
	if newer == old {
		n.t.Errorf("a pod that was started after the upgrade has the library %s, which was there before", newer)
	}
	n.running("joins")
	n.refused("joins", "a", 2*gib)
	n.keeps("stays", before, slice, old)

	n.delete("stays")
	_, err = n.plane.Kubectl("", "--namespace=gpuslice", "rollout", "restart", "daemonset/gpusliced")
	n.Must(err)
	n.rolledOut()
	if all := n.libraries(); !slices.Equal(all, []string{newer}) {
		n.t.Errorf("the node has the libraries %v when the last pod that had %s is gone; want %s", all, old, newer)
	}
	n.sees("comes", "a", 4*gib)
}

func (n *node) status(pod string) corev1.ContainerStatus {
	n.t.Helper()
	p, err := n.getPod(pod)
	n.Must(err)
	return p.Status.ContainerStatuses[0]
}

func (n *node) slice(pod string) api.Slice {
	n.t.Helper()
	all := n.Slices()
	i := slices.IndexFunc(all, func(s api.Slice) bool { return s.Namespace == n.ns && s.Pod == pod })
	if i < 0 {
		n.t.Fatalf("pod %s has no slice: %+v", pod, all)
	}
	return all[i]
}

// keeps fails unless a pod still has its container, slice, library and quota.
func (n *node) keeps(pod string, was corev1.ContainerStatus, had api.Slice, library string) {
	n.t.Helper()
	if is := n.status(pod); is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount {
		n.t.Errorf("the container changed from %+v to %+v", was, is)
	}
	has := n.slice(pod)
	if has.ID != had.ID || has.Generation != had.Generation || has.State != api.Active || has.Devices[0].Used < 2*gib {
		n.t.Errorf("the slice changed from %+v to %+v", had, has)
	}
	if is := n.library(pod); is != library || !slices.Contains(n.libraries(), library) {
		n.t.Errorf("the pod's library changed from %s to %s; the node has %v", library, is, n.libraries())
	}
	n.refused(pod, "a", 2*gib)
	n.sees(pod, "a", 4*gib)
}
