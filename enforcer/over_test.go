// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// startBelow starts a process as the child of p.cmd. Once that is killed, the process descends from no process of the slice.
func startBelow(t *testing.T, dir string) *proc {
	t.Helper()
	client, err := buildClient()
	if err != nil {
		t.Skipf("a C compiler is needed: %v", err)
	}
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	out, end, err := os.Pipe()
	must.Do(t, err)
	defer end.Close()
	// A shell redirects the standard input of its background processes, so the test passes descriptor 3.
	cmd := exec.Command("/bin/sh", "-c", `"$0" "$1" <&3 3<&- & wait`, client, dir)
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{r}, end, os.Stderr
	must.Do(t, cmd.Start())
	p := &proc{t: t, cmd: cmd, in: w, out: bufio.NewReader(out)}
	t.Cleanup(func() { p.kill(); out.Close() }) // the child exits at the end of its input
	p.ask("hello")
	return p
}

// A session's child outlives the session's first process while no enforcer runs. The next enforcer closes its page, and has to look for it among
// all processes, since it no longer descends from the session's.
func TestWhatASessionLeavesWhileNoEnforcerRunsGetsNothingMore(t *testing.T) {
	needs.Root(t)
	h := newHost(t, nil)
	link := filepath.Join(h.options.RunDir, "to-s")
	child := startBelow(t, link)
	first := child.cmd.Process
	reply, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: first.Pid, Quotas: []api.Quota{on(gpu0, 4*gib)}})
	must.Do(t, err)
	relink(t, reply, link)
	child.must("attach")
	child.must("device %s %d", hex0, 80*gib)
	child.must("charge 0 %d", gib)
	other, _ := h.session("other", on(gpu0, gib))
	other.must("attach")
	other.must("device %s %d", hex0, 80*gib)
	h.stop()
	_ = first.Kill()
	_, _ = first.Wait()
	child.must("charge 0 %d", gib) // needs no enforcer, and no enforcer has closed the page yet
	h.start()
	expect.ErrorIs(t, must.Err(h.Slice(context.Background(), "s")), api.ErrNotFound, "the session is still there")
	child.expect("refused", "charge 0 1")
	child.must("release 0 %d", gib)
	child.expect("refused", "charge 0 1")
	other.must("charge 0 %d", gib)
}

// A session ends with its first process, also for processes that joined it.
func TestThoseWhoJoinedGetNothingMoreOnceTheSessionIsOver(t *testing.T) {
	h := newHost(t, nil)
	h.believe()
	first, reply, token := h.tokenSession("s", on(gpu0, 4*gib))
	joined := start(t, filepath.Join(reply.Dir, "bind"), "")
	must.Do(t, h.join(joined, "s", token))
	joined.must("attach")
	joined.must("device %s %d", hex0, 80*gib)
	joined.must("charge 0 %d", gib)
	first.kill()
	h.gone("s")
	joined.expect("refused", "charge 0 1")
	eventually(t, "its token is gone with it", func() bool {
		_, err := os.Stat(filepath.Join(reply.Dir, api.TokenName))
		return os.IsNotExist(err)
	})
}

// The enforcer identifies a process by the socket that it connects to and the cgroup that it is in. Both must be of one slice.
func TestAProcessOfOneContainerIsAStrangerInAnother(t *testing.T) {
	h := newHost(t, nil)
	victim, reply, err := h.newBox("victim", on(gpu0, gib))
	must.Do(t, err)
	thief, _, err := h.newBox("thief", on(gpu0, gib))
	must.Do(t, err)
	victim.init.must("attach")
	victim.init.must("device %s %d", hex0, 80*gib)
	victim.init.must("charge 0 %d", gib)
	relink(t, reply, thief.link) // as if it had reached the other's directory
	thief.init.expect("status 1", "attach")
	thief.init.expect("status 1", "device %s %d", hex0, 80*gib)
	if s := h.see("victim"); s.ProcessCount != 1 || s.Devices[0].Used != gib {
		t.Errorf("%+v", s)
	}
}

func TestSlicesOfAnEarlierBootAreDropped(t *testing.T) {
	needs.Root(t)
	h := newHost(t, &fakeTruth{})
	p, _ := h.session("s", on(gpu0, 60*gib))
	h.stop()
	another := store.RecordsDir(h.options.RunDir, "another")
	must.Do(t, os.Rename(h.records(), another))
	h.start()
	expect.ErrorIs(t, must.Err(os.Lstat(another)), os.ErrNotExist)
	must.Len(t, slicesOf(t, h), 0)
	h.given(gpu0, 0, 80*gib)
	must.Len(t, must.Get(os.ReadDir(filepath.Join(h.options.RunDir, "slices")))(t), 0, "left")
	p.kill()
}
