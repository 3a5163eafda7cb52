//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/test/must"
)

const shimRuntime = "io.containerd.gpuslice.v1"

type containerdOptions struct {
	version string // the directory in the cache: "containerd-1.6", "containerd-2"
	cri     bool   // with the CRI plugin, configured by more
	format  int    // of its configuration; 0 means 2, the common format
	more    string // extra tables of its configuration
}

func (s *site) containerdFile() string { return s.in("containerd", "config.toml") }

func (s *site) containerdSocket() string { return s.in("containerd", "sock") }

// containerdNamespace is the namespace of the engine's containers. It names cgroups too: clients put containers into
// /NAMESPACE/ID.
func (s *site) containerdNamespace() string { return cgroupParent(s.Dir) }

// containerdUp starts the daemon "containerd", with all configurable paths below the site's containerd/.
func containerdUp(s *site, o containerdOptions) {
	s.t.Helper()
	containerdConfigure(s, o)
	containerdStart(s)
}

func containerdConfigure(s *site, o containerdOptions) {
	s.t.Helper()
	tool(s.t, o.version, "containerd")
	s.prepend(o.version)
	s.env = append(s.env, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1") // ctr's, mixed with the output of exec
	// Disables plugins that are unused and slow, or visible to other containerds of the machine.
	disabled := []string{"io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"}
	if !o.cri {
		disabled = append(disabled, "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime")
	}
	s.Must(os.Mkdir(s.in("containerd"), 0o755))
	text := fmt.Sprintf(`version = %d
root = %q
state = %q
disabled_plugins = ["%s"]

[grpc]
address = %q

[plugins."io.containerd.internal.v1.opt"]
path = %q
%s`, max(o.format, 2), s.in("containerd", "root"), s.in("containerd", "state"), strings.Join(disabled, `", "`), s.containerdSocket(), s.in("containerd", "opt"), o.more)
	s.Must(os.WriteFile(s.containerdFile(), []byte(text), 0o644))
}

func containerdStart(s *site) {
	s.t.Helper()
	s.daemon("containerd", func() error {
		// ctr waits ten seconds for a socket without a listener.
		conn, err := net.Dial("unix", s.containerdSocket())
		if err != nil {
			return err
		}
		conn.Close()
		if out, err := s.ctr("version"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, "containerd", "--config", s.containerdFile())
}

// runcRoot is the default directory for the runtime state of a namespace under runc's shim. All containerds of a machine share
// it.
func runcRoot(namespace string) string { return filepath.Join("/run/containerd/runc", namespace) }

func (s *site) ctr(args ...string) (string, error) {
	s.t.Helper()
	return s.output("ctr", s.ctrArgs(args...)...)
}

func (s *site) ctrArgs(args ...string) []string {
	return append([]string{"--address", s.containerdSocket(), "--namespace", s.containerdNamespace()}, args...)
}

func (s *site) ctrImport() {
	s.t.Helper()
	for _, image := range images {
		must.Output(s.ctr("image", "import", imageArchive(s.t, image)))(s.t, "import", image)
	}
}
