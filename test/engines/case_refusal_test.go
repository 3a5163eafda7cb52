//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type refusal struct {
	annotations map[string]string
	told        []string
}

// bad lists annotations with what the error must name: the annotation, the value, and the accepted form.
var bad = []refusal{
	{vram("4X"), []string{"gpuslice.vram", `"4X"`, `"4G"`}},
	{vram("0"), []string{"gpuslice.vram", `"0"`, "is not accepted"}},
	{vram("-1G"), []string{"gpuslice.vram", `"-1G"`, "is not accepted"}},
	{vram("99999999999G"), []string{"gpuslice.vram", `"99999999999G"`, "is not accepted"}},
	{vram("101%"), []string{"gpuslice.vram", `"101%"`, `"50%"`}},
	{map[string]string{"gpuslice.vrm": "4G"}, []string{"gpuslice.vrm", "unknown", "gpuslice.vram"}},
	{map[string]string{"gpuslice.vram": "4G", "gpuslice.mode": "off"}, []string{"gpuslice.mode", `"off"`, `"record"`}},
	{map[string]string{"gpuslice.vram": "4G", "gpuslice.tenant": "a b"}, []string{"gpuslice.tenant", `"a b"`, "letters"}},
	{map[string]string{"gpuslice.vram": "4G", "gpuslice.ttl": "soon"}, []string{"gpuslice.ttl", `"soon"`, `"30m"`}},
	{map[string]string{"gpuslice.vram.77": "4G"}, []string{"77", "device"}},
	{map[string]string{"gpuslice.vram.GPU-1": "4G"}, []string{"gpuslice.vram.GPU-1", "UUID"}},
	{map[string]string{}, []string{"no quota", "gpuslice.vram=4G"}},
}

func refusalsAreShown(s *site) {
	all := bad
	if e, ok := s.engine.(interface{ refusals() []refusal }); ok {
		all = e.refusals()
	}
	for _, b := range all {
		name, out, err := s.try(container{annotations: b.annotations})
		expect.Error(s.t, err, b.annotations, "was accepted")
		s.checkMessage(out, b.told...)
		s.remove(name)
	}
}

// checkMessage checks the shown error: our message once, whatever text the engine adds, and no runtime's log of how it ran a hook. Hooks
// in hooks.d are exempt: only runc honours their output.
func (s *site) checkMessage(out string, parts ...string) {
	s.t.Helper()
	shown := strings.ReplaceAll(out, `\`, "")
	for _, part := range append([]string{"gpuslice: "}, parts...) {
		expect.Contains(s.t, shown, part, "what the user is shown")
	}
	if _, after, podman := strings.Cut(shown, "OCI runtime error: gpuslice: "); podman { // Podman's prefix, after its log
		shown = after
	}
	if e, ok := s.engine.(*podman); ok && e.hookMode {
		return
	}
	if e, ok := s.engine.(interface{ showsRuncToo() bool }); ok && e.showsRuncToo() {
		shown = shown[max(0, strings.LastIndex(shown, "gpuslice: ")):]
	}
	expect.Equal(s.t, strings.Count(shown, "gpuslice: "), 1, "sentences of ours that the user is shown", out)
	for _, wrapping := range []string{"prestart hook", "stderr:", "exit status"} {
		expect.True(s.t, !strings.Contains(shown, wrapping), "the user is shown", wrapping, out)
	}
}

// etcIsBound: our preload file would land in the host's directory, on a mount point that another user can remove.
func etcIsBound(s *site) {
	for _, files := range []map[string]string{
		{"passwd": "root:x:0:0:root:/root:/bin/sh\n"},
		{"passwd": "root:x:0:0:root:/root:/bin/sh\n", "ld.so.preload": ""},
	} {
		etc := s.in("etc-of-the-host")
		s.Must(os.Mkdir(etc, 0o755))
		defer os.RemoveAll(etc)
		for file, text := range files {
			s.Must(os.WriteFile(filepath.Join(etc, file), []byte(text), 0o644))
		}
		name, out, err := s.try(container{binds: []bind{{etc, "/etc"}}})
		expect.Error(s.t, err, "a container with a host's directory on /etc was started")
		s.checkMessage(out, "/etc")
		s.remove(name)
		for file, text := range files {
			expect.Equal(s.t, string(must.Get(os.ReadFile(filepath.Join(etc, file)))(s.t)), text, "the host's", file, "is now")
		}
		// Engines create hosts, hostname and resolv.conf in it.
		for _, file := range children(etc) {
			if _, was := files[file]; !was && (strings.Contains(file, "preload") || strings.Contains(file, "gpuslice")) {
				s.t.Errorf("the host's directory has %s now", file)
			}
		}
		s.Must(os.RemoveAll(etc))
	}
}
