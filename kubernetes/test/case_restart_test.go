//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
)

// restarts kills each daemon in turn. Running pods stay, and new ones start as before.
func restarts(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("stays", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("stays", "a", holds(2*gib, 4*gib))
	before, err := n.getPod("stays")
	n.Must(err)
	again := func(d *cluster.Daemon) func() {
		return func() {
			d.Stop(unix.SIGKILL)
			d.Start()
		}
	}
	daemons := []struct {
		name    string
		restart func()
	}{
		{"gpusliced", func() { n.Stop(unix.SIGKILL); n.Start() }},
		{"the driver", again(n.driver)},
		{"the kubelet", again(n.kubelet)},
		{"containerd", again(n.containerd)},
		{"etcd", again(n.plane.Daemon("etcd"))},
		{"the API server", again(n.plane.Daemon("kube-apiserver"))},
		{"the scheduler", again(n.plane.Daemon("kube-scheduler"))},
		{"the controller manager", again(n.plane.Daemon("kube-controller-manager"))},
	}
	for i, d := range daemons {
		d.restart()
		n.eventually("a pod keeps its quota when "+d.name+" was restarted", func() error {
			out, err := n.exec("stays", "a", hog(2*gib)...)
			if err == nil || !strings.Contains(out, "exit code 2") {
				return fmt.Errorf("it took 2 GiB more: %q, %w", out, err)
			}
			out, err = n.exec("stays", "a", hog(0)...)
			if err == nil && !strings.Contains(out, holds(0, 4*gib)) {
				err = errors.New(out)
			}
			return err
		})
		p, err := n.getPod("stays")
		n.Must(err)
		if was, is := before.Status.ContainerStatuses[0], p.Status.ContainerStatuses[0]; is.ContainerID != was.ContainerID || is.RestartCount != 0 {
			n.t.Errorf("after a restart of %s the container changed from %+v to %+v", d.name, was, is)
		}
		name := fmt.Sprint("next-", i)
		n.start(n.pod(name, []string{"vram"}, container("a", sleep, "vram")))
		n.sees(name, "a", 4*gib)
		n.delete(name)
	}
}

func hookRefuses(n *node) {
	good, err := os.ReadFile(n.Config())
	n.Must(err)
	mend := func() { n.Must(os.WriteFile(n.Config(), good, 0o644)) }
	n.Must(os.WriteFile(n.Config(), []byte("nonsense = true\n"), 0o644))
	defer mend()
	n.template("vram", request("gpu", "4Gi"))
	n.create(n.pod("refused", []string{"vram"}, container("a", sleep, "vram")))
	n.ended("refused", "gpuslice: ", "nonsense")
	n.told("refused", "nonsense")
	n.delete("refused")
	n.eventually("the node has nothing of claims", n.left)
	mend()
	n.start(n.pod("accepted", []string{"vram"}, container("a", sleep, "vram")))
	n.sees("accepted", "a", 4*gib)
}

// hookHangs: the hook gives up on a hung enforcer, the runtime on a hung hook. The container starts once that is fixed.
func hookHangs(n *node) {
	n.claim("shared", request("gpu", "4Gi"))
	n.start(n.pod("first", []string{"vram=shared"}, container("a", sleep, "vram"))) // the claim is prepared
	again := func(name string) *corev1.Pod {
		p := n.pod(name, []string{"vram=shared"}, container("a", sleep, "vram"))
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		return p
	}
	n.WhileStopped(func() {
		n.create(again("without-enforcer"))
		n.ended("without-enforcer", "gpuslice: ", "the enforcer did not answer in time")
	})
	n.running("without-enforcer")
	n.sees("without-enforcer", "a", 4*gib)

	n.setHook("#!/bin/sh\nkill -STOP $$\n")
	defer n.setHook("")
	n.create(again("without-hook"))
	n.ended("without-hook", "ran past specified timeout of 30")
	n.setHook("")
	n.running("without-hook")
	n.sees("without-hook", "a", 4*gib)
}

// setHook replaces the hook by a script; "" restores it.
func (n *node) setHook(script string) {
	n.t.Helper()
	file := n.hook()
	n.Must(os.RemoveAll(file))
	if script == "" {
		n.Must(os.Symlink(filepath.Join(n.Bin, "gpuslice-hook"), file))
	} else {
		n.Must(os.WriteFile(file, []byte(script), 0o755))
	}
}

// startedAgain: an init container, a sidecar and a container that restarts share the claim's quota.
func startedAgain(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	p := n.pod("again", []string{"vram"}, container("a", []string{"/bin/sh", "-c", hogOnce(gib) + "; exit 1"}, "vram"))
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{container("i", []string{"/bin/sh", "-c", hogOnce(gib)}, "vram")}
	sidecar := container("s", sleep, "vram")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = append(p.Spec.InitContainers, sidecar)
	n.create(p)
	n.wrote("again", "i", holds(gib, 4*gib))
	n.eventually("the container was started again", func() error {
		p, err := n.getPod("again")
		if err == nil && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = fmt.Errorf("%+v", p.Status.ContainerStatuses)
		}
		return err
	})
	n.wrote("again", "a", holds(gib, 4*gib))
	n.sees("again", "s", 4*gib)
	n.refused("again", "s", 4*gib)
}

// crashes: containers crash while they hold memory, and are started again with their quota, GPUSLICE_CHURN times in all. A container
// with another quota does not crash, so it is not started again.
func crashes(n *node) {
	count := 20
	if text := os.Getenv("GPUSLICE_CHURN"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		n.Must(err)
	}
	files := func() int {
		info, err := n.Client.Info(context.Background())
		n.Must(err)
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", info.PID))
		n.Must(err)
		return len(open)
	}
	before := files()
	n.template("vram", request("gpu", "2Gi"))
	pods := []string{"w", "x", "y", "z"}
	for _, name := range pods {
		p := n.pod(name, []string{"vram"}, container("a", []string{"/bin/sh", "-c", fmt.Sprintf("/demo/cuda_hog %d; [ $? = 2 ] || sleep 3600; "+
			"/demo/cuda_hog %d >/tmp/said & until [ -s /tmp/said ]; do sleep 0.05; done; exit 1", 3*gib, gib)}, "vram"))
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		n.create(p)
	}
	for again := range count / len(pods) {
		for _, name := range pods {
			n.eventually(fmt.Sprintf("pod %s was started again %d times", name, again+1), func() error {
				p, err := n.getPod(name)
				if err == nil && (len(p.Status.ContainerStatuses) == 0 || int(p.Status.ContainerStatuses[0].RestartCount) <= again) {
					err = fmt.Errorf("%+v; %s", p.Status.ContainerStatuses, n.events(name))
				}
				return err
			})
		}
	}
	if all := n.Slices(); len(all) > 2*len(pods) {
		n.t.Errorf("%d pods have %d slices", len(pods), len(all))
	}
	n.empty()
	if after := files(); after-before > count/2 {
		n.t.Errorf("gpusliced had %d open files, and has %d after %d restarts", before, after, count)
	}
}

// oddSize: a size is rounded up to the next MiB.
func oddSize(n *node) {
	n.template("vram", request("gpu", "1500M"))
	n.start(n.pod("odd", []string{"vram"}, container("a", sleep, "vram")))
	n.sees("odd", "a", 1431*mib)
}
