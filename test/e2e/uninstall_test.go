// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Without the programs, an engine can neither start a process in a container nor stop it.
func TestUninstallRefusesWhileProgramsAreInUse(t *testing.T) {
	h := newHost(t)
	prefix := filepath.Join(h.Dir, "installed")
	program := filepath.Join(prefix, "bin", "gpuslice")
	h.Must(os.MkdirAll(filepath.Dir(program), 0o755))
	uninstall := func(force string) (string, error) {
		// Hide the state of systemd, engines and gpuslice on this machine.
		cmd := exec.Command("unshare", "--mount", "/bin/sh", "-euc", `
for dir in /run/systemd /var/lib/gpuslice; do [ ! -d "$dir" ] || mount -t tmpfs none "$dir"; done
exec ../../configs/install.sh uninstall`)
		cmd.Env = append(h.Env(), "BIN="+h.Bin, "PREFIX="+prefix, "VERSION=1", "SYSCONFDIR="+prefix, "UNITDIR="+prefix, "FORCE="+force,
			"PATH="+os.Getenv("PATH"), "DESTDIR=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	c := h.runContainer(map[string]string{"gpuslice.vram": "4G"}, "sleep", "1000")
	h.Eventually("the container's program has replaced runc init", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.pid()))
		return err == nil && string(name) == "sleep\n"
	})
	info := must.Get(h.Client.Info(t.Context()))(h.T)
	for _, run := range []struct {
		force string
		want  []string
	}{
		{"", []string{fmt.Sprintf("process %d (sleep): kill -9 %d", c.pid(), c.pid())}},
		{"1", []string{
			fmt.Sprintf("process %d (sleep): keeps running within its quota; the engine can no longer exec into the container or stop it; to end it: kill %d", c.pid(), c.pid()),
			fmt.Sprintf("a daemon that systemd does not run, process %d (gpusliced): keeps running; to end it: kill %d", info.PID, info.PID),
		}},
	} {
		h.Must(exec.Command("cp", filepath.Join(h.Bin, "gpuslice"), program).Run())
		out, err := uninstall(run.force)
		_, statErr := os.Stat(program)
		if removed := err == nil; removed != (run.force != "") || removed != (statErr != nil) {
			t.Errorf("force %q: uninstall returned %v, stat of the program %v\n%s", run.force, err, statErr, out)
		}
		for _, want := range run.want {
			expect.Contains(t, out, want, "force", run.force)
		}
	}
}

// missing = "record" counts a container without annotations, and does not limit it.
func TestContainerWithoutAnnotationsIsRecorded(t *testing.T) {
	h := newHostBy(t, api.Intercept, "missing = \"record\"")
	c := h.runContainer(nil, "sleep", "1000")
	expect.Contains(t, c.hog(3*gib).said, "holds ")
	if out, err := h.cli("ps"); err != nil || !strings.Contains(out, "record") || !strings.Contains(out, "3GiB") || !strings.Contains(out, "none") {
		t.Errorf("%v: %s", err, out)
	}
}
