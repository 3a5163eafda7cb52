// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// A refusal may be due to memory of a released container, so users must be able to find it.
func TestAReleasedSliceIsShownUntilItsProcessesHaveExited(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(map[string]string{"gpuslice.vram": "4G"}, "sleep", "1000")
	if g := c.hog(gib); !strings.HasPrefix(g.said, "holds ") {
		t.Fatal(g.said)
	}
	if out, err := h.cli("release", "--force", c.id); err != nil || !strings.Contains(out, "keep what they hold until they exit") {
		t.Fatalf("%v: %s", err, out)
	}
	shown := func() string {
		t.Helper()
		out := must.Get(h.cli("ps", "--no-trunc"))(h.T)
		return out
	}
	if out := shown(); !strings.Contains(out, c.id) || !strings.Contains(out, "released") || !strings.Contains(out, "1.51GiB") {
		t.Errorf("it holds a gibibyte and a context of 518 MiB, and ps shows\n%s", out)
	}
	if out, err := h.cli("inspect", "--json", c.id); err != nil || !strings.Contains(out, `"state": "released"`) || !strings.Contains(out, fmt.Sprintf(`"pid": %d,`, c.pid())) {
		t.Errorf("%v: %s", err, out)
	}
	// An admission refusal names it as ps does, and devices counts it as granted.
	total := h.device().Total
	d := h.newContainer(map[string]string{"gpuslice.vram": fmt.Sprintf("%db", total)}, "/bin/true")
	if out := d.refused(); !strings.Contains(out, c.id+" has 1.51GiB") {
		t.Errorf("%s is not named in\n%s", c.id, out)
	}
	expect.Refused(h.cli("release", "--force", c.id))(t, "was released before: its living processes, ")
	h.Stop(unix.SIGTERM)
	h.Start()
	if out := shown(); !strings.Contains(out, c.id) {
		t.Errorf("after a restart ps shows\n%s", out)
	}
	h.Must(c.runtime("delete", "--force", c.id).Run())
	h.Eventually("ps shows it no more", func() bool { return !strings.Contains(shown(), c.id) })
}
