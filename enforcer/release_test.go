// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestAttachedProcessesOfAReleasedSliceAreRefused(t *testing.T) {
	h := newHost(t, nil)
	p, _ := h.session("s", on(gpu0, gib))
	p.uses()
	p.must("charge 0 1")
	expect.ErrorIs(t, must.Err(h.Release(context.Background(), "s", 0, false)), api.ErrRunning)
	s := must.Get(h.Release(context.Background(), "s", 0, true))(t)
	must.Equal(t, s.State, api.Released, "state")
	p.expect("refused", "charge 0 1")
	expect.ErrorIs(t, must.Err(h.Release(context.Background(), "s", 0, true)), api.ErrNotFound)
}

// A container that is released while it has processes keeps its mounts: without them the next program that it starts would run without the
// interceptor and its quota.
func TestAReleasedContainerKeepsItsInterceptorUntilItsProcessesEnd(t *testing.T) {
	dir := newCgroup(t)
	h := newHost(t, nil)
	link := filepath.Join(h.options.RunDir, "bind")
	init := start(t, link, dir)
	request := api.RegisterRequest{ID: "c", PID: init.pid(), Quotas: []api.Quota{on(gpu0, gib)}}
	reply := must.Get(h.Register(context.Background(), request))(t)
	lead(t, link, reply)
	init.uses()
	init.must("charge 0 1")
	second := start(t, link, dir)
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	held := func(when string) {
		t.Helper()
		must.Do(t, must.Err(os.Stat(filepath.Join(reply.Dir, "bind", api.LibraryName))), when, "what the interceptor is bound on is gone")
		init.expect("refused", "charge 0 1")
		second.expect("status 3", "attach")
		start(t, link, dir).expect("status 3", "attach")
	}
	held("after the release")
	h.restart()
	held("after a restart")
	must.Len(t, must.Get(h.Slices(context.Background()))(t), 0)

	// Its id and its cgroup are free: the end of the old slice does not disturb a new one.
	next := must.Get(h.Register(context.Background(), request))(t)
	held("beside another slice")
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	for _, p := range []*proc{init, second} {
		p.kill()
	}
	for pid := range processes(t, dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	eventually(t, "the directories are gone with the last process", func() bool {
		_, err := os.Stat(reply.Dir)
		_, err2 := os.Stat(next.Dir)
		return os.IsNotExist(err) && os.IsNotExist(err2)
	})
	h.restart()
	if left, _ := os.ReadDir(filepath.Join(h.options.RunDir, "slices")); len(left) != 0 {
		t.Fatalf("something is left: %v", left)
	}
}

func TestUnreadableCgroupIsNotEmpty(t *testing.T) {
	dir := newCgroup(t)
	h := newHost(t, &fakeTruth{})
	init := start(t, "", dir)
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: init.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	events := filepath.Join(dir, "cgroup.events")
	must.Do(t, unix.Mount("/dev/null", events, "", unix.MS_BIND, ""))
	readable := sync.OnceFunc(func() {
		expect.NoError(t, unix.Unmount(events, 0))
	})
	defer readable()
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	expect.NoError(t, must.Err(os.Stat(reply.Dir)), "its directory is removed")
	readable()
	init.kill()
	eventually(t, "the directory is gone with the last process", func() bool {
		_, err := os.Stat(reply.Dir)
		return os.IsNotExist(err)
	})
}

func TestRestartRemovesFilesOfAReleasedContainer(t *testing.T) {
	dir := newCgroup(t)
	h := newHost(t, nil)
	init := start(t, "", dir)
	reply := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "c", PID: init.pid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	must.Get(h.Release(context.Background(), "c", 0, true))(t)
	h.stop()
	must.Get(os.Stat(reply.Dir))(t)
	init.kill()
	h.start()
	if _, err := os.Stat(reply.Dir); !os.IsNotExist(err) {
		t.Fatalf("its directory is still there: %v", err)
	}
}

func TestALateReleaseDoesNotEndTheNextSliceOfThatID(t *testing.T) {
	h := newHost(t, nil)
	p, first := h.session("s", on(gpu0, gib))
	if _, err := h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}}); !errors.Is(err, api.ErrExists) {
		t.Fatalf("a second slice of a living id: %v", err)
	}
	p.kill()
	second := must.Get(h.Register(context.Background(), api.RegisterRequest{ID: "s", Session: true, PID: os.Getpid(), Quotas: []api.Quota{on(gpu0, gib)}}))(t)
	must.True(t, second.Slice.Generation != first.Slice.Generation, "one generation for two slices")
	expect.ErrorIs(t, must.Err(h.Release(context.Background(), "s", first.Slice.Generation, true)), api.ErrNotFound)
	expect.ErrorIs(t, must.Err(h.Release(context.Background(), "s", 0, false)), api.ErrRunning)
	h.see("s")
}

// A slice does not outlive the host's boot, so none of its writes goes to the disk that does, and many slices that are released together do not
// wait for each other's syncs.
func TestASliceWritesNothingToTheStateDirectory(t *testing.T) {
	h := newHost(t, nil)
	files := func() map[string]string {
		all := make(map[string]string)
		for _, entry := range must.Get(os.ReadDir(h.options.StateDir))(t) {
			text := must.Get(os.ReadFile(filepath.Join(h.options.StateDir, entry.Name())))(t)
			info := must.Get(entry.Info())(t)
			all[entry.Name()] = fmt.Sprint(info.ModTime(), info.Size(), string(text))
		}
		return all
	}
	before := files()
	p, _ := h.session("s", on(gpu0, 4*gib))
	p.uses().must("charge 0 %d", gib)
	must.Get(h.Change(context.Background(), "s", api.ChangeRequest{Quotas: []api.Quota{on(gpu0, 2*gib)}}))(t)
	must.Get(h.Release(context.Background(), "s", 0, true))(t)
	after := files()
	expect.Equal(t, len(after), len(before), "files")
	for name, was := range before {
		expect.Equal(t, after[name], was, name, "was written")
	}
}
