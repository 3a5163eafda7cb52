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
)

// tables are what containerd's configuration has for Kubernetes, but for the handler that `gpuslice install` adds.
func (e *kube) tables() string {
	var b strings.Builder
	runtime := "io.containerd.grpc.v1.cri"
	if e.format < 3 {
		fmt.Fprintf(&b, "[plugins.%q]\nsandbox_image = %q\n", runtime, imageRef(pauseImage))
	} else {
		fmt.Fprintf(&b, "[plugins.%q.pinned_images]\nsandbox = %q\n", "io.containerd.cri.v1.images", imageRef(pauseImage))
		runtime = "io.containerd.cri.v1.runtime"
		fmt.Fprintf(&b, "[plugins.%q]\ncdi_spec_dirs = []\n", runtime)
	}
	// A machine of tests may forbid what a node's kubelet may do.
	fmt.Fprint(&b, "restrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n")
	fmt.Fprintf(&b, "[plugins.%q.cni]\nconf_dir = %q\n", runtime, e.s.in("cni", "conf"))
	if e.format < 3 {
		fmt.Fprintf(&b, "bin_dir = %q\n", e.s.in("cni", "bin"))
	} else {
		fmt.Fprintf(&b, "bin_dirs = [%q]\nuse_internal_loopback = true\n", e.s.in("cni", "bin"))
	}
	const listed = `pod_annotations = ["gpuslice.*"]` + "\n" + `container_annotations = ["gpuslice.*"]` + "\n"
	handler := func(name, kind, more, options string) {
		table := fmt.Sprintf("plugins.%q.containerd.runtimes.%s", runtime, name)
		fmt.Fprintf(&b, "[%s]\nruntime_type = %q\n%s[%s.options]\nRoot = %q\n%s", table, kind, more, table, e.s.in("containerd", "runc"), options)
	}
	handler("runc", "io.containerd.runc.v2", "", "")
	handler(handlerShim, shimRuntime, listed, "")
	handler(handlerRunc, "io.containerd.runc.v2", listed, fmt.Sprintf("BinaryName = %q\n", e.s.Bin+"/gpuslice-runtime"))
	handler(handlerUnlisted, shimRuntime, "", "")
	handler(handlerSystemd, shimRuntime, listed, "SystemdCgroup = true\n")
	return b.String()
}

// fakeNetwork makes a network plugin that says there is a network. Only pods in user namespaces ask for one, since the
// host's is not for them.
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
	// The library of containerd's keeps the answers there, wherever all else is.
	const kept = "/var/lib/cni"
	if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
		e.s.t.Cleanup(func() {
			_ = os.Remove(kept + "/results")
			_ = os.Remove(kept)
		})
	}
}
