// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// How many slices a host can have is how many descriptors the enforcer may have, by those that it needs for each.
func TestASliceCostsFewDescriptors(t *testing.T) {
	needs.Root(t)
	const slices = 100
	register := func(t *testing.T, request func(id string) api.RegisterRequest, each int) {
		t.Helper()
		h := newHost(t, nil)
		before := openFiles(t)
		for i := range slices {
			must.Get(h.Register(context.Background(), request(fmt.Sprint("s", i))))(t)
		}
		// Others come and go, but fewer than there are slices.
		if n := openFiles(t) - before; n > slices*each+slices/2 {
			t.Errorf("%d slices have %d descriptors, not %d each", slices, n, each)
		}
	}
	containers := func(parent func(*testing.T) string, each int) func(*testing.T) {
		return func(t *testing.T) {
			pids := inCgroups(t, parent(t), slices)
			register(t, func(id string) api.RegisterRequest {
				pid := pids[0]
				pids = pids[1:]
				return api.RegisterRequest{ID: id, Container: id, PID: pid, Quotas: []api.Quota{on(gpu0, gib)}}
			}, each)
		}
	}
	t.Run("containers", containers(newCgroup, 1)) // the attach socket
	if _, err := os.Stat(oldCgroups); err == nil {
		t.Run("containers of version 1", containers(newOldCgroup, 2)) // and the first process, whose end says something of the cgroup's
	}
	t.Run("sessions", func(t *testing.T) {
		register(t, func(id string) api.RegisterRequest {
			return api.RegisterRequest{ID: id, Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}}
		}, 2)
	})
}

// So does a process that has a place in a ledger, and in a pool's, for as long as it lives.
func TestAnAttachedProcessCostsADescriptorInEachLedger(t *testing.T) {
	const processes = 20
	for _, pool := range []string{"", "p"} {
		dir := newCgroup(t)
		h := newHost(t, nil)
		request := api.RegisterRequest{ID: "c", Container: "c", Quotas: []api.Quota{on(gpu0, gib)}}
		each := 1
		if pool != "" {
			each, request.Pools = 2, api.PoolNames{pool}
			must.Get(h.CreatePool(context.Background(), pool, api.PoolRequest{Quotas: request.Quotas}))(t)
		}
		link := filepath.Join(h.options.RunDir, "bind")
		init := start(t, link, dir)
		request.PID = init.pid()
		reply := must.Get(h.Register(context.Background(), request))(t)
		lead(t, link, reply)
		init.must("attach") // and what a slice's first one needs
		none := openFiles(t)
		var others []*proc
		for range processes {
			others = append(others, start(t, link, dir))
		}
		before := openFiles(t)
		for _, p := range others {
			p.must("attach")
		}
		eventually(t, fmt.Sprintf("%d descriptors for each of them, and no others", each), func() bool { return openFiles(t)-before == processes*each })
		for _, p := range others {
			p.kill()
		}
		eventually(t, "they are gone with them", func() bool { return openFiles(t) <= none })
	}
}

// openFiles is how many descriptors this process has.
func openFiles(t *testing.T) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

// inCgroups are processes with a cgroup for each below parent.
func inCgroups(t *testing.T, parent string, n int) (pids []int) {
	t.Helper()
	for i := range n {
		dir := filepath.Join(parent, strconv.Itoa(i))
		must.Do(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() { eventually(t, "remove the cgroup", func() bool { return os.Remove(dir) == nil }) })
		cmd := exec.Command("sleep", "600")
		must.Start(t, cmd)
		pid := cmd.Process.Pid
		must.Do(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
		pids = append(pids, pid)
	}
	return pids
}
