// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), append([]string{"--socket", h.Socket()}, args...)...)
	cmd.Env = h.Env()
	return cmd
}

// cli returns both outputs of gpuslice.
func (h *host) cli(args ...string) (string, error) {
	h.T.Helper()
	out, err := h.command(args...).CombinedOutput()
	return string(out), err
}

// teller is a program in a session that prints the driver's figures on request.
type teller struct {
	h   *host
	in  *os.File
	out *bufio.Reader
}

func (h *host) newTeller(name string, args ...string) *teller {
	h.T.Helper()
	h.compileLinked("teller", "programs/teller.c")
	cmd := h.command(append(append([]string{"run", "--quiet", "--name", name}, args...), "--", filepath.Join(h.Dir, "fake", "teller"))...)
	cmd.Stderr = &h.Log
	in, w, err := os.Pipe()
	h.Must(err)
	cmd.Stdin = in
	out := must.Get(cmd.StdoutPipe())(h.T)
	h.Must(cmd.Start())
	in.Close()
	h.T.Cleanup(func() {
		w.Close()
		_ = cmd.Wait()
	})
	return &teller{h, w, bufio.NewReader(out)}
}

func (p *teller) ask(line string) string {
	p.h.T.Helper()
	_, err := fmt.Fprintln(p.in, line)
	p.h.Must(err)
	answer, err := p.out.ReadString('\n')
	p.h.Must(err)
	return strings.TrimSpace(answer)
}

func (p *teller) info() (free, total uint64) {
	p.h.T.Helper()
	if _, err := fmt.Sscanf(p.ask("info"), "%d of %d", &free, &total); err != nil {
		p.h.T.Fatal(err)
	}
	return free, total
}

func TestARunningProgramSeesAQuotaThatIsChanged(t *testing.T) {
	h := newHost(t)
	p := h.newTeller("s", "--vram", "4G")
	free, total := p.info()
	context := total - free
	if total != 4*gib || p.ask("total") != fmt.Sprint(4*gib) {
		t.Fatalf("it sees %d of %d", free, total)
	}
	must.Equal(t, p.ask(fmt.Sprint(4*gib)), "refused", "4 GiB beside a context")

	expect.Contains(t, must.Output(h.cli("set", "s", "--vram", "6G"))(t), "6GiB")
	if free, total := p.info(); total != 6*gib || free != 6*gib-context || p.ask("total") != fmt.Sprint(6*gib) {
		t.Errorf("after set it sees %d of %d", free, total)
	}
	must.Equal(t, p.ask(fmt.Sprint(4*gib)), "ok", "4 GiB of 6")

	// With less than it holds, the program keeps its memory and sees none free.
	if out, err := h.cli("set", "--vram=3G", "s"); err != nil || !strings.Contains(out, "3GiB") || !strings.Contains(out, "active, over") {
		t.Fatalf("%v: %s", err, out)
	}
	if free, total := p.info(); total != 3*gib || free != 0 {
		t.Errorf("over its limit it sees %d of %d", free, total)
	}
	expect.Equal(t, p.ask(fmt.Sprint(2*mib)), "refused", "2 MiB more")
	if use := h.Use("s"); use.Used != 4*gib || use.Limit != 3*gib {
		t.Errorf("%+v", use)
	}
	out, err := h.cli("ps")
	if err != nil || !strings.Contains(out, "active, over") || strings.Contains(out, "EXPIRES") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := h.cli("events"); err != nil || !strings.Contains(out, "its limit on") || !strings.Contains(out, "it is over that") {
		t.Errorf("%v: %s", err, out)
	}
}

// Programs that require that free memory never rises, such as vLLM while it loads a model, depend on this.
func TestFreeMemoryRisesWhenAnotherSliceOfAnOvercommittedCardEnds(t *testing.T) {
	h := &host{Host: testhost.New(t, testhost.Options{Runtimes: []string{"/bin/true"}, Enforcer: "enforcement = \"intercept\"\n[admission]\novercommit = 2.0\n",
		Env: []string{"FAKECUDA_MEMORY=8G"}})}
	p, other := h.newTeller("p", "--vram", "6G"), h.newTeller("other", "--vram", "6G")
	rest, _ := p.info()
	must.Equal(t, other.ask(fmt.Sprint(4*gib)), "ok", "4 GiB of 8")
	if free, total := p.info(); total != 6*gib || free > 4*gib || free == 0 {
		t.Errorf("beside 4 GiB of a card of 8 it sees %d of %d", free, total)
	}
	must.Equal(t, p.ask(fmt.Sprint(4*gib)), "refused", "4 GiB beside 4 GiB")
	h.Must(other.in.Close())
	h.Eventually("the quota's rest is free", func() bool { free, _ := p.info(); return free == rest })
}

// A device's quota takes precedence over the one on all devices. A change of the latter must say so.
func TestASetThatChangesNothingIsRefusedAndOneOfAllDevicesCounts(t *testing.T) {
	h := newHostBy(t, api.Intercept, "", "FAKECUDA_DEVICES=2")
	c := h.runContainer(map[string]string{"gpuslice.vram": "4G", "gpuslice.vram.1": "1G"}, "sleep", "1000")
	limits := func() (first, second uint64) {
		t.Helper()
		for _, s := range h.Slices() {
			for _, d := range s.Devices {
				if d.Index == 0 {
					first = d.Limit / gib
				} else {
					second = d.Limit / gib
				}
			}
		}
		return first, second
	}
	for _, step := range []struct {
		args          string
		said          string
		fails         bool
		first, second uint64
	}{
		{args: "--vram 2G", said: "keeps its own quota, 1GiB: --device all changes that, too", first: 2, second: 1},
		{args: "--vram 3G --device 0", first: 3, second: 1},
		{args: "--vram 5G", fails: true, said: "has its own quota on each device that it sees, so one for all devices would change nothing", first: 3, second: 1},
		{args: "--drop 0", first: 2, second: 1},
		{args: "--drop 0", fails: true, said: "has no quota of its own on device 0 (GPU-", first: 2, second: 1},
		{args: "--vram 6G --device all", first: 6, second: 6},
		{args: "--vram 7G", first: 7, second: 7},
		{args: "--vram 7G --device all --device 0", fails: true, said: "--device all means every device", first: 7, second: 7},
	} {
		out, err := h.cli(append([]string{"set", c.id}, strings.Fields(step.args)...)...)
		first, second := limits()
		if (err != nil) != step.fails || !strings.Contains(out, step.said) || first != step.first || second != step.second {
			t.Errorf("set %s: %v, limits %d and %d\n%s", step.args, err, first, second, out)
		}
	}
	own := h.runContainer(map[string]string{"gpuslice.vram.0": "1G", "gpuslice.vram.1": "1G"}, "sleep", "1000")
	expect.Refused(h.cli("set", own.id, "--drop", "1"))(t, "has no quota for all devices to replace the one on device 1")
	expect.Equal(t, strings.Count(must.Output(h.cli("set", own.id, "--vram", "2G", "--device", "all"))(t), "2GiB"), 2)
	for _, step := range []struct{ args, said string }{
		{"create llm --vram 4G", "4GiB"}, {"set llm --vram 1G --device 1", "1GiB"},
		{"set llm --vram 2G", "keeps its own quota, 1GiB: --device all"}, {"set llm --vram 3G --device all", "3GiB"},
	} {
		expect.Contains(t, must.Get(h.cli(append([]string{"pool"}, strings.Fields(step.args)...)...))(t), step.said, "pool", step.args)
	}
}
