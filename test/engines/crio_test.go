//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// criCRIO is CRI-O, with all paths below the site's crio/. It runs pods without a pause container where possible.
type criCRIO struct{}

func (criCRIO) name() string          { return "crio" }
func (criCRIO) socket(s *site) string { return s.in("crio", "sock") }
func (criCRIO) noUserns() string      { return "" }
func (criCRIO) noCDI() string         { return "" }

func (criCRIO) state(s *site, id string) string { return (&testhost.CRIO{Dir: s.in("crio")}).State(id) }
func (d criCRIO) load(e *kube, image string)    { e.s.Must(d.of(e).Load(imageArchive(e.s.t, image))) }

func (criCRIO) of(e *kube) *testhost.CRIO {
	s := e.s
	c := &testhost.CRIO{
		Dir: s.in("crio"), Programs: filepath.Dir(tool(s.t, "crio", "crio")), Podman: tool(s.t, "podman", "podman"), Pause: imageRef(pauseImage),
		Handlers: map[string]string{"runc": tool(s.t, e.runtime...)}, Env: append([]string{"PATH=" + s.path}, s.env...),
	}
	for _, name := range e.more {
		c.Handlers[name] = s.runtime(name)
	}
	return c
}

func (d criCRIO) configure(e *kube) {
	s := e.s
	_, err := d.of(e).Configure()
	s.Must(err)
	s.prepend("crio")
	for _, dir := range []string{"conf.d", "hooks"} {
		s.Must(os.MkdirAll(s.in("crio", dir), 0o755))
	}
	dropIn := s.in("crio", "conf.d", "99-gpuslice.conf")
	e.install("crio", dropIn)
	// The drop-in names programs below the root's /usr/local/bin; the site's are elsewhere.
	text := must.Get(os.ReadFile(dropIn))(s.T)
	s.Must(os.WriteFile(dropIn, bytes.Replace(text, []byte("/usr/local/bin/"), []byte(s.Bin+"/"), 1), 0o644))
}

func (d criCRIO) start(e *kube) {
	in := func(name string) string { return e.s.in("crio", name) }
	e.s.daemon("crio", e.ready, "crio", "--config", in("crio.conf"), "--config-dir", in("conf.d"), "--listen", d.socket(e.s), "--stream-port", "0",
		"--log-dir", in("logs"), "--version-file", in("version"), "--version-file-persist", "", "--clean-shutdown-file", "", "--internal-wipe=false",
		"--namespaces-dir", in("ns"), "--container-exits-dir", in("exits"), "--container-attach-socket-dir", in("attach"), "--hooks-dir", in("hooks"),
		"--cni-config-dir", e.s.in("cni", "conf"), "--cni-plugin-dir", e.s.in("cni", "bin"), "--cdi-spec-dirs", e.s.in("cdi"))
}
