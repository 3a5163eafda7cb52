//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const crioSocket = "/run/crio/crio.sock"

// underCRIO runs a case with CRI-O. The first such case changes the node's runtime.
func underCRIO(run func(n *node)) func(n *node) {
	return func(n *node) {
		if n.crio == nil {
			n.becomeCRIO()
		}
		run(n)
	}
}

func (n *node) becomeCRIO() {
	n.t.Helper()
	n.kubelet.Stop(unix.SIGTERM)
	n.containerd.Stop(unix.SIGTERM)
	n.hideHugetlb()
	crio := &testhost.CRIO{
		Dir: n.in("crio"), Programs: n.engine("crio"), Podman: n.engine("podman", "podman"), Pause: imageRef("pause"),
		Handlers: map[string]string{"runc": n.engine("runc-1.4", "runc"), "gpuslice": filepath.Join(n.Bin, "gpuslice-runtime")},
		Env:      []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GPUSLICE_CONFIG=" + n.Config()},
	}
	file, err := crio.Configure()
	n.Must(err)
	for _, image := range []struct {
		name, layer string
		runs        testhost.ImageConfig
	}{
		{"debian", "debian.tar", testhost.ImageConfig{Cmd: []string{"/bin/sh"}}},
		{"pause", "busybox.tar", testhost.ImageConfig{Cmd: []string{"/bin/sleep", "1000000"}}},
	} {
		archive := n.in("image.tar")
		n.Must(testhost.WriteImage(archive, n.engine("images", image.layer), imageRef(image.name), image.runs))
		n.Must(crio.Load(archive))
		n.Must(os.Remove(archive))
	}
	n.crio = &cluster.Daemon{
		T: n.suite, Name: "crio", Dir: n.Dir, Command: []string{n.engine("crio", "crio"), "--config", file},
		Env: []string{"PATH=" + n.engine("crio") + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + n.Dir},
		Ready: func() error {
			_, err := os.Stat(crioSocket)
			return err
		},
	}
	n.run(n.crio)
	text, err := os.ReadFile(kubeletFile)
	n.Must(err)
	n.Must(os.WriteFile(kubeletFile, bytes.ReplaceAll(text, []byte(containerdSocket), []byte(crioSocket)), 0o644))
	n.kubelet.Start()
}

// hideHugetlb hides a controller: with cgroup v1 CRI-O assumes that all controllers of the kernel are mounted, and the kubelet
// sets limits of huge pages.
func (n *node) hideHugetlb() {
	n.t.Helper()
	const file = "/proc/cgroups"
	text, err := os.ReadFile(file)
	n.Must(err)
	var kept []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "hugetlb") {
			kept = append(kept, line)
		}
	}
	n.Must(unix.Mount(n.write(n.in("crio", "cgroups"), "%s", strings.Join(kept, "")), file, "", unix.MS_BIND, ""))
}

func restartedCRIO(n *node) {
	n.template("vram", request("gpu", "4Gi"))
	n.start(n.pod("stays", []string{"vram"}, container("a", hog(2*gib), "vram")))
	n.wrote("stays", "a", holds(2*gib, 4*gib))
	n.crio.Stop(unix.SIGKILL)
	n.crio.Start()
	n.eventually("the pod keeps its quota", func() error {
		out, err := n.exec("stays", "a", hog(0)...)
		if err == nil && !strings.Contains(out, holds(0, 4*gib)) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	n.refused("stays", "a", 2*gib)
	n.delete("stays")
	n.eventually("nothing is left", n.left)
}
