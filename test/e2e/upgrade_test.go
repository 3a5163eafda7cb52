// SPDX-License-Identifier: Apache-2.0

//go:build upgrade

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// A daemon of the version before, GPUSLICE_FORMER, is replaced while containers run: test/upgrade.sh makes one and runs this.
func TestADaemonThatReplacesOneOfTheVersionBeforeFindsItsContainers(t *testing.T) {
	former := os.Getenv("GPUSLICE_FORMER")
	if former == "" {
		t.Fatal("GPUSLICE_FORMER is not set: run test/upgrade.sh")
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: make deps")
	}
	h := &host{testhost.New(t, testhost.Options{
		Runtimes: []string{runc}, Env: []string{"FORMER=" + former},
		Enter: []string{"/bin/sh", "-c", `now=$1; shift; exec "${FORMER:-$now}" "$@"`, "sh"},
	}), runc}
	h.mustRun("pool", "create", "llm", "--vram", "6G")
	own, member := h.newContainer(vram(), "/bin/sleep", "600"), h.newContainer(inPool(""), "/bin/sleep", "600")
	own.run()
	member.run()
	if g := own.hog(3 * gib); !g.holds(3*gib, quota) {
		t.Fatalf("said %q", g.said)
	}
	first := member.hog(2 * gib)
	if !first.holds(2*gib, 6*gib) {
		t.Fatalf("said %q", first.said)
	}
	idle := h.newContainer(vram(), "/bin/sleep", "600")
	idle.run()

	h.SetEnv()
	h.Stop(unix.SIGTERM)
	h.Start()

	if _, err := os.Stat(filepath.Join(h.Dir, "state", "gpuslice.db.schema-1")); err != nil {
		t.Fatal(err)
	}
	h.Eventually("what is held counts", h.Holds(own.id, 3*gib))
	h.Eventually("what is held counts in the pool", func() bool { return h.pool("llm").Used == 2*gib })
	for c, more := range map[*container]uint64{own: 2 * gib, member: 5 * gib, idle: 5 * gib} {
		if g := c.hog(more); !g.refused() {
			t.Errorf("%d bytes more: said %q, want a refusal", more, g.said)
		}
	}
	if g := idle.hog(gib); !g.holds(gib, quota) {
		t.Errorf("said %q", g.said)
	}
	member.kill(first)
	h.Eventually("the death of one that attached before is seen", func() bool { return h.pool("llm").Used == 0 })

	h.Stop(unix.SIGKILL)
	h.Start()
	h.Eventually("and again after a restart", h.Holds(own.id, 3*gib))
	for _, c := range []*container{own, member, idle} {
		if out, err := c.output(c.runtime("delete", "--force", c.id)); err != nil {
			t.Fatalf("delete: %v\n%s", err, out)
		}
		h.Eventually("the slice is gone", h.IsGone(c.id))
	}
}
