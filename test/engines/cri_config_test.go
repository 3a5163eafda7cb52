//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

type criContainerd struct {
	version string // its directory in the cache
	format  int    // of its configuration
}

const kubeNamespace = "k8s.io"

// kubes counts the running engines, which share a runc directory outside their sites.
var kubes atomic.Int32

func (criContainerd) name() string          { return "containerd" }
func (criContainerd) socket(s *site) string { return s.containerdSocket() }
func (criContainerd) state(_ *site, id string) string {
	return filepath.Join(runcRoot(kubeNamespace), id)
}

func (d criContainerd) noUserns() string {
	if d.format < 3 {
		return "containerd 1.6 makes no user namespaces for pods"
	}
	return ""
}

func (d criContainerd) noCDI() string {
	if d.format < 3 {
		return "the CRI of containerd has CDI since 1.7"
	}
	return ""
}

func (d criContainerd) configure(e *kube) {
	containerdConfigure(e.s, containerdOptions{version: d.version, cri: true, format: d.format, more: d.tables(e)})
	e.install("containerd", e.s.containerdFile())
}

func (criContainerd) start(e *kube) {
	containerdStart(e.s)
	kubes.Add(1)
	e.s.t.Cleanup(func() {
		if kubes.Add(-1) == 0 {
			_ = os.Remove(runcRoot(kubeNamespace))
		}
	})
}

func (criContainerd) load(e *kube, image string) {
	e.s.must("ctr", "--address", e.s.containerdSocket(), "--namespace", kubeNamespace, "image", "import", imageArchive(e.s.t, image))
}

// tables returns containerd's CRI tables, without the handler that `gpuslice install` adds.
func (d criContainerd) tables(e *kube) string {
	var b strings.Builder
	runtime := "io.containerd.grpc.v1.cri"
	if d.format < 3 {
		fmt.Fprintf(&b, "[plugins.%q]\nsandbox_image = %q\n", runtime, imageRef(pauseImage))
	} else {
		fmt.Fprintf(&b, "[plugins.%q.pinned_images]\nsandbox = %q\n", "io.containerd.cri.v1.images", imageRef(pauseImage))
		runtime = "io.containerd.cri.v1.runtime"
		fmt.Fprintf(&b, "[plugins.%q]\ncdi_spec_dirs = [%q]\n", runtime, e.s.in("cdi"))
	}
	// A test machine may forbid what a node's kubelet may do.
	fmt.Fprint(&b, "restrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n")
	fmt.Fprintf(&b, "[plugins.%q.cni]\nconf_dir = %q\n", runtime, e.s.in("cni", "conf"))
	if d.format < 3 {
		fmt.Fprintf(&b, "bin_dir = %q\n", e.s.in("cni", "bin"))
	} else {
		fmt.Fprintf(&b, "bin_dirs = [%q]\nuse_internal_loopback = true\n", e.s.in("cni", "bin"))
	}
	const listed = `pod_annotations = ["gpuslice.*"]` + "\n" + `container_annotations = ["gpuslice.*"]` + "\n"
	handler := func(name, kind, more string, options ...string) {
		table := fmt.Sprintf("plugins.%q.containerd.runtimes.%s", runtime, name)
		fmt.Fprintf(&b, "[%s]\nruntime_type = %q\n%s", table, kind, more)
		if len(options) > 0 {
			fmt.Fprintf(&b, "[%s.options]\n%s\n", table, strings.Join(options, "\n"))
		}
	}
	root := fmt.Sprintf("Root = %q", e.s.in("containerd", "runc"))
	// `gpuslice install` copies the options of this handler. They stay empty: in a user namespace containerd 2 fails for a
	// runtime with options that is not runc's ("can't unmarshal type runtimeoptions.v1.Options").
	handler("runc", "io.containerd.runc.v2", "")
	handler(handlerRunc, "io.containerd.runc.v2", listed, root, fmt.Sprintf("BinaryName = %q", e.s.Bin+"/gpuslice-runtime"))
	handler(handlerSystemd, shimRuntime, listed, "SystemdCgroup = true")
	for _, name := range e.more {
		handler(name, "io.containerd.runc.v2", listed, root, fmt.Sprintf("BinaryName = %q", e.s.runtime(name)))
	}
	if d.format < 3 {
		// For a runtime that is not runc's, containerd 1.6 silently drops all other options.
		file := e.s.in("options.toml")
		e.s.Must(os.WriteFile(file, []byte(root), 0o644))
		root = fmt.Sprintf("ConfigPath = %q", file)
	}
	handler(handlerUnlisted, shimRuntime, "", root)
	return b.String()
}

// install adds the handler "gpuslice" as an operator would, with the site as the host's root so that its record stays there.
func (e *kube) install(engine, file string) {
	e.s.t.Helper()
	file, err := filepath.Rel(e.s.Dir, file)
	e.s.Must(err)
	e.s.must("gpuslice", "install", engine, "--root", e.s.Dir, "--config", "/"+file)
}

// fakeNetwork creates a network plugin that reports success. Only pods in user namespaces need it, as they cannot use the host's
// network.
func (e *kube) fakeNetwork() {
	const plugin = `#!/bin/sh
cat >/dev/null
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}' ;;
ADD) echo '{"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "'"$CNI_NETNS"'"}],
	"ips": [{"version": "4", "address": "192.0.2.2/24", "interface": 0}]}' ;;
esac
`
	for file, text := range map[string]string{
		"bin/fake": plugin, "conf/10-fake.conf": `{"cniVersion": "0.4.0", "name": "fake", "type": "fake"}`,
	} {
		path := e.s.in("cni", file)
		e.s.Must(os.MkdirAll(filepath.Dir(path), 0o755))
		e.s.Must(os.WriteFile(path, []byte(text), 0o755))
	}
	// containerd's CNI library caches results in this fixed directory.
	const kept = "/var/lib/cni"
	if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
		e.s.t.Cleanup(func() {
			_ = os.Remove(kept + "/results")
			_ = os.Remove(kept)
		})
	}
}
