// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// Each slice costs the enforcer descriptors, so its limit of open files bounds the number of slices.
func TestASliceCostsFewDescriptors(t *testing.T) {
	needs.Root(t)
	const slices = 100
	checkCost := func(t *testing.T, request func(id string) api.RegisterRequest, each int) {
		t.Helper()
		h := newHost(t, nil)
		before := openFiles(t)
		for i := range slices {
			must.Get(h.Register(context.Background(), request(fmt.Sprint("s", i))))(t)
		}
		// The enforcer also opens a few other descriptors. One too many per slice would be 100.
		if n := openFiles(t) - before; n > slices*each+slices/2 {
			t.Errorf("%d slices have %d descriptors, want %d each", slices, n, each)
		}
	}
	containers := func(parent func(*testing.T) string, each int) func(*testing.T) {
		return func(t *testing.T) {
			pids := inCgroups(t, parent(t), slices)
			checkCost(t, func(id string) api.RegisterRequest {
				pid := pids[0]
				pids = pids[1:]
				return api.RegisterRequest{ID: id, Container: id, PID: pid, Quotas: []api.Quota{on(gpu0, gib)}}
			}, each)
		}
	}
	t.Run("containers", containers(newCgroup, 1)) // the attach socket
	if _, err := os.Stat(cgroupV1Root); err == nil {
		t.Run("containers on cgroup v1", containers(newCgroupV1, 2)) // and a pidfd of the first process: its exit may leave the cgroup empty
	}
	t.Run("sessions", func(t *testing.T) {
		checkCost(t, func(id string) api.RegisterRequest {
			return api.RegisterRequest{ID: id, Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}}
		}, 2)
	})
}

// An attached process costs one descriptor for its slice's ledger and one for its pool's until it exits.
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
		init.must("attach") // opens what a slice's first attach needs
		baseline := openFiles(t)
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
		eventually(t, "the descriptors of the killed processes are closed", func() bool { return openFiles(t) <= baseline })
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

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

// An enforcer without descriptors refuses new requests, keeps its slices, and works again once descriptors are free.
func TestEnforcerRecoversFromDescriptorExhaustion(t *testing.T) {
	d := newDaemon(t)
	d.start("")
	request := func(id string) error {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		return must.Err(d.Register(ctx, api.RegisterRequest{ID: id, Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}}))
	}
	must.Do(t, request("before"))
	var limit unix.Rlimit
	must.Do(t, unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &limit))
	set := func(n uint64) {
		t.Helper()
		must.Do(t, unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}, nil))
	}
	entries := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid)))(t)
	// With each number of descriptors left, another step of a registration fails.
	for left := range uint64(8) {
		set(uint64(len(entries)) + left)
		if err := request(fmt.Sprint("short", left)); err == nil {
			if _, err := d.Release(context.Background(), fmt.Sprint("short", left), 0, true); err != nil {
				t.Log("the slice cannot be released now:", err)
			}
		}
		must.True(t, d.alive(), "the enforcer died with", left, "descriptors left\n", d.log())
	}
	// And with all of them taken by idle connections.
	set(uint64(len(entries)) + 20)
	var idle []net.Conn
	for range 40 {
		if conn, err := net.Dial("unix", filepath.Join(d.dir, "control.sock")); err == nil {
			idle = append(idle, conn)
		}
	}
	for _, conn := range idle {
		conn.Close()
	}
	set(limit.Cur)
	eventually(t, "the enforcer answers again", func() bool { return request("after") == nil })
	for id, s := range d.ids() {
		expect.Equal(t, s.State, api.Active, id, s.Reason)
		expect.NoError(t, must.Err(d.Release(context.Background(), id, 0, true)))
	}
	d.nothingLeft()
}
