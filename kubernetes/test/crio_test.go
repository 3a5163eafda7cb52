//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const crioSocket = "/run/crio/crio.sock"

// underCRIO is a case on a node with CRI-O, which it has from the first of them on.
func underCRIO(run func(n *node)) func(n *node) {
	return func(n *node) {
		if n.crio == nil {
			n.becomeCRIO()
		}
		run(n)
	}
}

// becomeCRIO gives the kubelet another runtime, as who drains a node and changes it does.
func (n *node) becomeCRIO() {
	n.t.Helper()
	n.kubelet.Stop(unix.SIGTERM)
	n.containerd.Stop(unix.SIGTERM)
	n.hideHugetlb()
	file := n.write("/etc/crio/crio.conf", `[crio]
root = %q
runroot = %q
storage_driver = "overlay"
[crio.image]
pause_image = %q
pause_command = "/bin/sleep 1000000"
signature_policy = %q
[crio.nri]
enable_nri = false
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = %q
apparmor_profile = "unconfined"
seccomp_profile = "unconfined"
disable_hostport_mapping = true
`, n.in("crio", "storage"), n.in("crio", "run"), imageRef("pause"), n.write(n.in("crio", "policy.json"), `{"default": [{"type": "insecureAcceptAnything"}]}`), n.engine("crio", "pinns"))
	var handlers strings.Builder
	for name, path := range map[string]string{"runc": n.engine("runc-1.4", "runc"), "gpuslice": filepath.Join(n.Bin, "gpuslice-runtime")} {
		fmt.Fprintf(&handlers, "[crio.runtime.runtimes.%s]\nruntime_path = %q\nruntime_type = \"oci\"\nruntime_root = %q\nmonitor_path = %q\nmonitor_cgroup = \"pod\"\nmonitor_env = [%q, %q]\n",
			name, path, n.in("crio", "runc"), n.engine("crio", "conmon"), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GPUSLICE_CONFIG="+n.Config())
	}
	n.write("/etc/crio/crio.conf.d/runtimes.conf", "%s", handlers.String())
	n.loadIntoCRIO(imageRef("debian"), n.engine("images", "debian.tar"), testhost.ImageConfig{Cmd: []string{"/bin/sh"}})
	n.loadIntoCRIO(imageRef("pause"), n.engine("images", "busybox.tar"), testhost.ImageConfig{Cmd: []string{"/bin/sleep", "1000000"}})
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

// hideHugetlb: with cgroups of version 1 CRI-O takes a controller that the kernel has for one that is mounted, and the kubelet sets limits of huge pages.
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

// loadIntoCRIO is by Podman, which has the same storage. CRI-O itself fetches images from registries only.
func (n *node) loadIntoCRIO(ref, layer string, runs testhost.ImageConfig) {
	n.t.Helper()
	file := n.in("image.tar")
	n.Must(testhost.WriteImage(file, layer, ref, runs))
	out, err := exec.Command(n.engine("podman", "podman"), "--root", n.in("crio", "storage"), "--runroot", n.in("crio", "run"), "--storage-driver", "overlay",
		"--conmon", n.engine("crio", "conmon"), "--cgroup-manager", "cgroupfs", "--tmpdir", n.in("crio", "podman"), "load", "--quiet", "--signature-policy", n.in("crio", "policy.json"), "--input", file).CombinedOutput()
	if err != nil {
		n.t.Fatalf("load %s: %v\n%s", ref, err, out)
	}
	n.Must(os.Remove(file))
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
