//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// shimRuntime is the name under which containerd's clients know our shim.
const shimRuntime = "io.containerd.gpuslice.v1"

// containerdOptions is what engines want of their containerd.
type containerdOptions struct {
	version string // the directory in the cache: "containerd-1.6", "containerd-2"
	cri     bool   // with Kubernetes' interface, whose tables more has
	format  int    // of its configuration; 0 is 2, which all understand
	more    string // tables of its configuration, after those that each has
}

// containerdFile is containerd's configuration.
func (s *site) containerdFile() string { return s.in("containerd", "config.toml") }

// containerdSocket is its address.
func (s *site) containerdSocket() string { return s.in("containerd", "sock") }

// containerdNamespace is that of all which an engine does. It names cgroups too: clients put containers into /NAMESPACE/ID.
func (s *site) containerdNamespace() string { return cgroupParent(s.Dir) }

// containerdUp starts a containerd for an engine: the daemon "containerd", which has all below the site's containerd/
// that it can be told to have there.
func containerdUp(s *site, o containerdOptions) {
	s.t.Helper()
	containerdConfigure(s, o)
	containerdStart(s)
}

// containerdConfigure writes the configuration only.
func containerdConfigure(s *site, o containerdOptions) {
	s.t.Helper()
	tool(s.t, o.version, "containerd")
	s.prepend(o.version)
	s.env = append(s.env, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1") // ctr's, amid what an exec writes
	// What nobody here uses and takes time, or would be found by the machine's other containerds.
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

// containerdStart starts the daemon as it is configured.
func containerdStart(s *site) {
	s.t.Helper()
	s.daemon("containerd", func() error {
		// ctr waits ten seconds for a socket at which nobody listens.
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

// runcRoot is where runc's shim has the low-level runtime keep its state for a namespace, unless a client names another
// place. It is the same for all containerds of a machine.
func runcRoot(namespace string) string { return filepath.Join("/run/containerd/runc", namespace) }

// ctr is a command of containerd's own client.
func (s *site) ctr(args ...string) (string, error) {
	s.t.Helper()
	return s.output("ctr", s.ctrArgs(args...)...)
}

func (s *site) ctrArgs(args ...string) []string {
	return append([]string{"--address", s.containerdSocket(), "--namespace", s.containerdNamespace()}, args...)
}

// ctrImport loads the suite's images.
func (s *site) ctrImport() {
	s.t.Helper()
	for _, image := range images {
		if out, err := s.ctr("image", "import", imageArchive(s.t, image)); err != nil {
			s.t.Fatalf("import %s: %v\n%s", image, err, out)
		}
	}
}
