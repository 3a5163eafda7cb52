// SPDX-License-Identifier: Apache-2.0

// Package deploy contains only tests, of the script that installs gpuslice on a node from an image.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

type node struct {
	*testing.T
	image, host, driver string
}

// newNode returns a node without a driver, and an image as the Containerfile builds it.
func newNode(t *testing.T) *node {
	n := &node{t, t.TempDir(), filepath.Join(t.TempDir(), "opt"), t.TempDir()}
	for name, content := range map[string]string{
		"gpusliced": "#!/bin/sh\necho gpusliced 1.0\n", "gpuslice-hook": "hook 1", "libgpuslice.so": "library 1", "config.toml": "[enforcer]\n",
	} {
		n.write(filepath.Join(n.image, name), content)
	}
	for from, to := range map[string]string{"node.sh": "node.sh", "../../configs/library.sh": "library.sh"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		n.write(filepath.Join(n.image, to), string(text))
	}
	return n
}

func (n *node) write(file, content string) {
	n.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
		n.Fatal(err)
	}
}

func (n *node) install() {
	n.Helper()
	cmd := exec.Command("/bin/sh", filepath.Join(n.image, "node.sh"), "install")
	cmd.Env = []string{"PATH=" + n.image + ":/usr/bin:/bin", "HOST_DIR=" + n.host, "DRIVER_ROOT=" + n.driver, "CONFIG=" + filepath.Join(n.image, "config.toml")}
	if out, err := cmd.CombinedOutput(); err != nil {
		n.Fatalf("%v\n%s", err, out)
	}
}

// newest returns the library for new containers, and all libraries on the node.
func (n *node) newest() (newest string, all []string) {
	n.Helper()
	newest, err := filepath.EvalSymlinks(filepath.Join(n.host, "lib", "libgpuslice.so"))
	if err != nil {
		n.Fatal(err)
	}
	all, _ = filepath.Glob(filepath.Join(n.host, "lib", "1.0-*", "libgpuslice.so"))
	return newest, all
}

func TestANodeWithoutADriverIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.install()
	if _, err := os.Stat(n.host); !os.IsNotExist(err) {
		t.Errorf("%s: %v; want nothing there", n.host, err)
	}
}

func TestTheDriverIsFoundWhereDistributionsAndOperatorsPutIt(t *testing.T) {
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib64", "run/nvidia/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64"} {
		n := newNode(t)
		n.write(filepath.Join(n.driver, dir, "libnvidia-ml.so.1"), "")
		n.install()
		for name, want := range map[string]string{"bin/gpuslice-hook": "hook 1", "lib/libgpuslice.so": "library 1", "config.toml": "[enforcer]\n"} {
			if text, err := os.ReadFile(filepath.Join(n.host, name)); err != nil || string(text) != want {
				t.Errorf("driver in %s: %s has %q, %v; want %q", dir, name, text, err, want)
			}
		}
	}
}

func TestUpgradeKeepsHookAndLibraryOfRunningContainers(t *testing.T) {
	n := newNode(t)
	n.write(filepath.Join(n.driver, "usr/lib64/libnvidia-ml.so.1"), "")
	n.install()
	old, _ := n.newest()
	hook, err := os.Open(filepath.Join(n.host, "bin/gpuslice-hook")) // as a running hook
	if err != nil {
		t.Fatal(err)
	}
	defer hook.Close()
	user := exec.Command("/bin/sleep", "60")
	user.Env = []string{"USES=" + old}
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = user.Process.Kill()
		_ = user.Wait()
	}
	defer end()
	n.write(filepath.Join(n.image, "libgpuslice.so"), "library 2")
	n.write(filepath.Join(n.image, "gpuslice-hook"), "hook 2, longer")
	for range 2 { // the previous newest one stays until the next upgrade
		n.install()
		if newest, all := n.newest(); newest == old || !slices.Contains(all, old) {
			t.Errorf("after an upgrade new containers have %s, of %v; a running one has %s", newest, all, old)
		}
	}
	was := make([]byte, 64)
	if size, err := hook.Read(was); string(was[:size]) != "hook 1" {
		t.Errorf("the hook that ran has become %q, %v", was[:size], err)
	}
	end()
	n.install()
	if newest, all := n.newest(); len(all) != 1 || all[0] != newest {
		t.Errorf("when nobody has the old library, %v are there", all)
	}
}
