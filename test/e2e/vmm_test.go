// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func (h *host) vmm(session []string, args ...string) *exec.Cmd {
	h.T.Helper()
	program := filepath.Join(h.Bin, "vmm")
	if _, err := os.Stat(program); err != nil {
		h.T.Skipf("needs bin/vmm: make test-programs")
	}
	return h.command(append(append([]string{"run"}, session...), append([]string{"--", program}, args...)...)...)
}

func TestPoolsThatGrowAndShrinkAreInTheLedgerToTheByte(t *testing.T) {
	forEachBackend(t, func(t *testing.T, h *host, _ api.Enforcement) {
		span := 3 * time.Second
		if os.Getenv("GPUSLICE_LONG") != "" {
			span = time.Minute
		}
		out, err := h.vmm([]string{"--vram", "4G"}, "caches", "-time", span.String(), "-socket", h.Socket()).CombinedOutput()
		t.Logf("%s", out)
		expect.NoError(t, err)
	})
}

func TestAPoolOfSlicesIsTheLimitOfSharedModels(t *testing.T) {
	h := newHost(t)
	h.mustRun("pool", "create", "llm", "--vram", "6G")
	holds := func(args ...string) (lines *bufio.Scanner) {
		cmd := h.vmm([]string{"--pool", "llm"}, append([]string{"hold"}, args...)...)
		input := must.Get(cmd.StdinPipe())(h.T)
		output := must.Get(cmd.StdoutPipe())(h.T)
		var log testhost.Output
		cmd.Stderr = &log
		h.Must(cmd.Start())
		t.Cleanup(func() {
			input.Close()
			expect.NoError(t, cmd.Wait(), log.String())
		})
		return bufio.NewScanner(output)
	}
	read := func(lines *bufio.Scanner, format string, into ...any) {
		t.Helper()
		must.True(t, lines.Scan(), "it said nothing")
		if _, err := fmt.Sscanf(lines.Text(), format, into...); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
	}
	var held, limit, current uint64
	read(holds("-memory", fmt.Sprint(2*gib)), "holds %d: limit %d, current %d", &held, &limit, &current)
	if held != 2*gib || limit != 6*gib || current < held {
		t.Errorf("holds %d, limit %d, current %d", held, limit, current)
	}
	// The second gets the rest, and its figures include both.
	var requested, all uint64
	second := holds()
	read(second, "refused: requested %d, limit %d, current %d", &requested, &limit, &current)
	read(second, "holds %d: limit %d, current %d", &held, &limit, &all)
	use := h.poolUse("llm")
	if requested != 64<<20 || limit != 6*gib || current+requested <= limit || current < held+2*gib || use.Used != held+2*gib {
		t.Errorf("requested %d, limit %d, current %d, holds %d; the pool says %+v", requested, limit, current, held, use)
	}
}
