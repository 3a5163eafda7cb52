// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// aContext is the cost of a context on the simulated card, in whole blocks, with the part that NVML lists for no process.
const aContext = 524 << 20

// mostUsed returns the most bytes that the card had in use at one time while f ran.
func mostUsed(t *testing.T, program string, env []string, f func()) int {
	t.Helper()
	watch := exec.Command(program, "watch")
	watch.Env = env
	in, out := must.Get(watch.StdinPipe())(t), must.Get(watch.StdoutPipe())(t)
	must.Do(t, watch.Start())
	lines := bufio.NewReader(out)
	must.Get(lines.ReadString('\n'))(t)
	f()
	must.Do(t, in.Close())
	most := must.Get(strconv.Atoi(strings.TrimSpace(must.Get(lines.ReadString('\n'))(t))))(t)
	must.Do(t, watch.Wait())
	return most
}

// Before the first context on a device its cost is unknown.
func TestProcessesThatStartTogetherHoldNoMoreThanTheQuotaAndAContext(t *testing.T) {
	program := compileNVMLOf(t, "starts")
	env := environment(t, "FAKECUDA_SLOW=contexts")
	var said string
	most := mostUsed(t, program, env, func() { said = must.Output(inSlice(t, env, "4G", program, "12"))(t) })
	if limit := 4<<30 + aContext; most > limit {
		t.Errorf("the card had %d MiB in use, %d at most are expected", most>>20, limit>>20)
	}
	expect.Contains(t, said, "7 of 12") // as many as fit
}

// A context that turns out to be small leaves room for the others.
func TestSmallContextsThatStartTogetherAllFit(t *testing.T) {
	out := must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=100M", "FAKECUDA_SLOW=contexts"), "2G", compileNVMLOf(t, "starts"), "12"))(t)
	expect.Contains(t, out, "12 of 12")
	out = must.Output(inSlice(t, environment(t, "FAKECUDA_CONTEXT=100M", "FAKECUDA_SLOW=contexts"), "256M", compileNVMLOf(t, "starts"), "3"))(t)
	expect.Contains(t, out, "2 of 3")
}

func TestFirstContextsAreChargedWithoutDriverTruth(t *testing.T) {
	fault := filepath.Join(t.TempDir(), "fault")
	out := must.Output(inSlice(t, environment(t, "FAKECUDA_NVML_FAULT="+fault), "4G", compileNVMLOf(t, "starts"), "12", fault))(t)
	expect.Contains(t, out, "7 of 12")
}
