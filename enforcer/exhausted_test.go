// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// An enforcer without descriptors refuses new requests, keeps its slices, and works again once descriptors are free.
func TestAnEnforcerWithoutDescriptorsGoesOnWhenThereAreSomeAgain(t *testing.T) {
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
	// From none left to a few: each number fails another step.
	for left := range uint64(8) {
		set(uint64(len(entries)) + left)
		if err := request(fmt.Sprint("short", left)); err == nil {
			if _, err := d.Release(context.Background(), fmt.Sprint("short", left), 0, true); err != nil {
				t.Log("it cannot be released now:", err)
			}
		}
		if !d.alive() {
			t.Fatalf("it died with %d descriptors left\n%s", left, d.log())
		}
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
	eventually(t, "it answers again", func() bool { return request("after") == nil })
	for id, s := range d.ids() {
		if s.State != api.Active {
			t.Errorf("%s is %s: %s", id, s.State, s.Reason)
		}
		expect.NoError(t, must.Err(d.Release(context.Background(), id, 0, true)))
	}
	d.nothingLeft()
}
