// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

type daemon struct {
	t       *testing.T
	program string
	dir     string
	cmd     *exec.Cmd
	done    chan struct{}
	*client.Client
}

var buildDaemon = sync.OnceValues(func() (string, error) {
	if _, err := buildClient(); err != nil {
		return "", err
	}
	program, _ := buildClient()
	out := filepath.Join(filepath.Dir(program), "gpusliced")
	b, err := exec.Command("go", "build", "-o", out, "../cmd/gpusliced").CombinedOutput()
	if err != nil {
		return "", errors.New(string(b))
	}
	return out, nil
})

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	needs.Root(t)
	if testing.Short() {
		t.Skip("it kills and starts a daemon many times")
	}
	program, err := buildDaemon()
	if err != nil {
		t.Skipf("the go command and a C compiler are needed: %v", err)
	}
	dir := must.Get(os.MkdirTemp("", "gs-"))(t)
	config := filepath.Join(dir, "config.toml")
	must.Do(t, os.WriteFile(config, []byte("[enforcer]\nnvml = \"off\"\ngroup = \"\"\n"), 0o600))
	d := &daemon{t: t, program: program, dir: dir, Client: client.New(filepath.Join(dir, "control.sock"))}
	t.Cleanup(func() { d.kill(); os.RemoveAll(dir) })
	return d
}

func (d *daemon) startsAgain(point string) {
	d.t.Helper()
	must.True(d.t, d.start(""), "after a death at", point, "it does not start again:\n", d.log())
}

// start starts it, to die at point unless that is empty, and waits until it answers or has exited.
func (d *daemon) start(point string) (alive bool) {
	d.t.Helper()
	d.cmd = exec.Command(d.program, "--config", filepath.Join(d.dir, "config.toml"), "--socket", filepath.Join(d.dir, "control.sock"),
		"--run-dir", filepath.Join(d.dir, "run"), "--state-dir", filepath.Join(d.dir, "state"), "--log-level", "debug")
	log := must.Get(os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(d.t)
	defer log.Close()
	d.cmd.Stderr = log
	d.cmd.Env = append(os.Environ(), killpoint.Env+"="+point)
	must.Do(d.t, d.cmd.Start())
	cmd, done := d.cmd, make(chan struct{})
	d.done = done
	go func() { _ = cmd.Wait(); close(done) }()
	for {
		if info, err := d.Info(context.Background()); err == nil && info.PID == cmd.Process.Pid {
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (d *daemon) kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

func (d *daemon) log() string {
	b, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(b[max(0, len(b)-6000):])
}

func (d *daemon) died(point string) {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(await.Patience):
		d.t.Fatalf("it did not pass %s\n%s", point, d.log())
	}
}

// container has processes in a cgroup of their own; the first looks for the slice in link.
type container struct {
	cgroup, link string
	init         *proc
}

func newContainer(t *testing.T, d *daemon, name string) *container {
	c := &container{cgroup: newCgroup(t), link: filepath.Join(d.dir, name)}
	c.init = start(t, c.link, c.cgroup)
	return c
}

func (c *container) request(id string) api.RegisterRequest {
	return api.RegisterRequest{ID: id, Container: id, PID: c.init.pid(), Quotas: []api.Quota{on(gpu0, 4*gib)}}
}

func (d *daemon) register(c *container, id string) error {
	return d.registerAs(c, c.request(id))
}

func (d *daemon) registerAs(c *container, r api.RegisterRequest) error {
	reply, err := d.Register(context.Background(), r)
	if err == nil {
		lead(d.t, c.link, reply)
	}
	return err
}

// attach retries like the interceptor while the enforcer does not answer.
func attach(p *proc) {
	p.t.Helper()
	eventually(p.t, "attach", func() bool { return p.ask("attach") != statusUnreachable })
}

func (d *daemon) ids() map[string]api.Slice {
	d.t.Helper()
	all, err := d.Slices(context.Background())
	if err != nil {
		d.t.Fatalf("%v\n%s", err, d.log())
	}
	byID := make(map[string]api.Slice)
	for _, s := range all {
		byID[s.ID] = s
	}
	return byID
}

func (d *daemon) nothingLeft() {
	d.t.Helper()
	dirs := must.Get(os.ReadDir(filepath.Join(d.dir, "run", "slices")))(d.t)
	if n := len(d.ids()); len(dirs) > n {
		d.t.Fatalf("%d directories for %d slices\n%s", len(dirs), n, d.log())
	}
}

var points = []string{
	"register.ledger", "register.dir", "register.decided", "register.stored", "register.limited", "register.listening", "register.done",
	"device.stored", "device.added", "attach.assigned", "attach.live", "attach.replied", "attach.settled",
	"death.seen", "death.settled", "release.marked", "release.closed", "release.lingering", "release.removed", "release.done",
}

func TestAnEnforcerKilledAtAnyPointLosesNothingAndLeaksNothing(t *testing.T) {
	for _, point := range points {
		t.Run(point, func(t *testing.T) { killedAt(t, point) })
	}
}

func killedAt(t *testing.T, point string) {
	cgroupKeep := newCgroup(t) // skips the test before anything is built
	_ = os.Remove(cgroupKeep)
	d := newDaemon(t)
	d.start("")
	keep, other := newContainer(t, d, "k"), newContainer(t, d, "o")
	must.Do(t, d.register(keep, "keep"))
	k := keep.init
	attach(k)
	k.must("device %s %d", hex0, 80*gib)
	k.must("charge 0 %d", gib)
	d.kill()
	k.must("charge 0 %d", gib) // needs no enforcer

	d.start(point)
	// One death in the life of a slice; what was confirmed before it holds.
	var registered, released bool
	alive := func() bool {
		select {
		case <-d.done:
			return false
		default:
			return true
		}
	}
	registered = d.register(other, "other") == nil
	o := other.init
	var second *proc
	if registered {
		for _, step := range []func(){
			func() { o.ask("attach") },
			func() { o.ask("device %s %d", hex0, 80*gib) },
			func() { o.ask("charge 0 %d", gib) },
			func() { o.tell("exec"); o.ask("attach") },
			func() {
				second = start(t, other.link, other.cgroup)
				second.ask("attach")
				second.ask("charge 0 %d", gib)
			},
			func() {
				second.kill()
				eventually(t, "it is settled, or the enforcer is dead", func() bool {
					s, err := d.Slice(context.Background(), "other")
					return err != nil || s.ProcessCount == 1
				})
			},
			func() { o.ask("charge 0 %d", 2*gib) },
			func() { _, err := d.Release(context.Background(), "other", 0, true); released = err == nil },
			func() {
				if point == "release.removed" || point == "release.done" {
					o.kill()
				}
			},
		} {
			if alive() {
				step()
			}
		}
	}
	d.died(point)

	d.startsAgain(point)
	all := d.ids()
	if s, ok := all["keep"]; !ok || s.State != api.Active || s.Devices[0].Used != 2*gib || s.ProcessCount != 1 {
		t.Fatalf("keep is %+v\n%s", s, d.log())
	}
	k.must("charge 0 %d", 2*gib)
	k.expect("refused", "charge 0 1")
	s, there := all["other"]
	releasing := strings.HasPrefix(point, "release.")
	switch {
	case registered && !released && !releasing && (!there || s.State != api.Active):
		t.Fatalf("a slice that was promised is lost: %+v\n%s", s, d.log())
	case (released || releasing) && there:
		t.Fatalf("a slice in release exists again: %+v\n%s", s, d.log())
	}
	if there && registered {
		attach(o)
		o.must("device %s %d", hex0, 80*gib)
		eventually(t, "only what the living hold is charged", func() bool {
			s, err := d.Slice(context.Background(), "other")
			return err == nil && s.State == api.Active && s.Devices[0].Used == 0 && s.ProcessCount == 1
		})
		o.must("charge 0 %d", 4*gib)
		o.expect("refused", "charge 0 1")
	} else if releasing && !released { // it was not killed yet
		o.expect("refused", "charge 0 1")
		eventually(t, "an attach is refused", func() bool { return o.ask("attach") == "status 3" })
	}
	if !releasing {
		d.nothingLeft()
	}
	o.kill()
	if second != nil {
		second.kill()
	}
	eventually(t, "the other slice is gone", func() bool {
		dirs, _ := os.ReadDir(filepath.Join(d.dir, "run", "slices"))
		return len(d.ids()) == 1 && len(dirs) == 1
	})
}

func TestEnforcerKilledDuringItsStartStartsAgain(t *testing.T) {
	cgroupKeep := newCgroup(t)
	_ = os.Remove(cgroupKeep)
	d := newDaemon(t)
	d.start("")
	c := newContainer(t, d, "k")
	must.Do(t, d.register(c, "keep"))
	diesAsItComesBack(t, d, c, []string{"restore.ledger", "restore.settled", "restore.listening"}, func(after string) {
		if s := d.ids()["keep"]; s.State != api.Active || s.Devices[0].Used != gib || s.ProcessCount != 1 {
			t.Fatalf("after a death at %s: %+v\n%s", after, s, d.log())
		}
		d.nothingLeft()
	})
}

// diesAsItComesBack has the daemon die at each of points, as it settles what another process of c leaves. It calls look after the restart.
// c may hold 4 GiB.
func diesAsItComesBack(t *testing.T, d *daemon, c *container, points []string, look func(after string)) {
	t.Helper()
	attach(c.init)
	c.init.must("device %s %d", hex0, 80*gib)
	c.init.must("charge 0 %d", gib)
	for _, point := range points {
		dies := start(t, c.link, c.cgroup)
		attach(dies)
		dies.must("charge 0 %d", gib)
		d.kill()
		dies.kill()
		must.True(t, !d.start(point), "it did not pass", point)
		c.init.expect("refused", "charge 0 %d", 4*gib)
		d.startsAgain(point)
		look(point)
	}
}

var poolPoints = []string{
	"pool.ledger", "pool.stored", "pool.stored:2", "pool.stored:3", "pool.limited", "pool.limited:2", "pool.deleted",
	"attach.pool.assigned", "attach.pool.live", "attach.pool.settled", "death.pool.seen", "death.pool.settled",
}

func TestAnEnforcerKilledAtAnyPointOfAPoolLosesNothingAndLeaksNothing(t *testing.T) {
	for _, point := range poolPoints {
		t.Run(point, func(t *testing.T) { poolKilledAt(t, point, api.AllDevices, "keep") })
		t.Run(point+" of two pools", func(t *testing.T) { poolKilledAt(t, point, gpu0, "beside", "keep") })
	}
}

func (d *daemon) registerIn(c *container, id string, pools ...string) error {
	request := c.request(id)
	request.Pools, request.Quotas = pools, nil
	return d.registerAs(c, request)
}

func (d *daemon) pools() map[string]api.Pool {
	d.t.Helper()
	all, err := d.Pools(context.Background())
	if err != nil {
		d.t.Fatalf("%v\n%s", err, d.log())
	}
	byName := make(map[string]api.Pool)
	for _, p := range all {
		byName[p.Name] = p
	}
	return byName
}

// poolKilledAt kills the enforcer at a point of the life of pool keep, which has a quota on device. Each slice is a member of all of the pools.
func poolKilledAt(t *testing.T, point, device string, pools ...string) {
	if cgroup := newCgroup(t); cgroup != "" { // or skip, before anything is built
		_ = os.Remove(cgroup)
	}
	ctx, all := context.Background(), func(bytes uint64) api.PoolRequest {
		return api.PoolRequest{Quotas: []api.Quota{on(device, bytes)}}
	}
	d := newDaemon(t)
	d.start("")
	keep, other := newContainer(t, d, "k"), newContainer(t, d, "o")
	must.Get(d.CreatePool(ctx, "keep", all(4*gib)))(t)
	must.Get(d.CreatePool(ctx, "beside", api.PoolRequest{Quotas: []api.Quota{on(gpu1, 2*gib)}}))(t)
	must.Do(t, d.registerIn(keep, "keep", pools...))
	k, o := keep.init, other.init
	attach(k)
	d.kill()

	// One death in the life of a pool; what was confirmed before it holds.
	d.start(point)
	alive := func() bool {
		select {
		case <-d.done:
			return false
		default:
			return true
		}
	}
	limit := 4 * gib
	registered, changed, deleting := false, false, false
	var second *proc
	for _, step := range []func(){
		func() { k.ask("attach") }, // again, as after an exec
		func() { k.ask("device %s %d", hex0, 80*gib) },
		func() { _, _ = d.CreatePool(ctx, "other", all(gib)) },
		func() { registered = d.registerIn(other, "other", pools...) == nil },
		func() {
			o.ask("attach")
			o.ask("device %s %d", hex0, 80*gib)
			o.ask("charge 0 %d", gib)
		},
		func() {
			second = start(t, other.link, other.cgroup)
			second.ask("attach")
			second.ask("charge 0 %d", gib)
			second.kill()
			eventually(t, "it is settled, or the enforcer is dead", func() bool {
				p, err := d.Pool(ctx, "keep")
				return err != nil || p.ProcessCount == 2
			})
		},
		func() {
			_, err := d.SetPool(ctx, "keep", all(6*gib))
			changed = err == nil
		},
		func() { deleting = true; _, _ = d.DeletePool(ctx, "other") },
	} {
		if alive() {
			step()
		}
	}
	d.died(point)

	d.startsAgain(point)
	known := d.pools()
	p, there := known["keep"]
	if !there || p.State != api.Active {
		t.Fatalf("the pool is %+v\n%s", p, d.log())
	}
	if limit = p.Quotas[0].Bytes; limit != 6*gib && (changed || limit != 4*gib) {
		t.Fatalf("it was changed: %t, but has %d\n%s", changed, limit, d.log())
	}
	if _, there := known["other"]; there && deleting && point == "pool.deleted" {
		t.Fatalf("what was deleted is back\n%s", d.log())
	}
	attach(k)
	k.must("device %s %d", hex0, 80*gib)
	held := uint64(0)
	if registered {
		attach(o)
		o.must("device %s %d", hex0, 80*gib)
		o.must("charge 0 %d", gib)
		held = gib
	}
	eventually(t, "only what the living hold is charged", func() bool {
		p := d.pools()["keep"]
		return len(p.Devices) == 1 && p.Devices[0].Used == held && p.Devices[0].Limit == limit && p.State == api.Active
	})
	k.must("charge 0 %d", limit-held)
	k.expect("refused", "charge 0 1")
	if len(pools) > 1 {
		k.must("device %s %d", hex1, 80*gib)
		k.must("charge 1 %d", 2*gib)
		k.expect("refused", "charge 1 1")
	}
	for id, s := range d.ids() {
		must.Equal(t, s.State, api.Active, id, s.Reason)
	}
	d.nothingLeft()
	if second != nil {
		second.kill()
	}
	o.kill()
	k.kill()
	eventually(t, "all can be deleted", func() bool {
		for name := range d.pools() {
			if _, err := d.DeletePool(ctx, name); err != nil {
				return false
			}
		}
		return true
	})
}

func TestEnforcerKilledWhileRestoringAPoolRestoresIt(t *testing.T) {
	if cgroup := newCgroup(t); cgroup != "" {
		_ = os.Remove(cgroup)
	}
	d := newDaemon(t)
	d.start("")
	must.Get(d.CreatePool(context.Background(), "llm", api.PoolRequest{Quotas: []api.Quota{on(api.AllDevices, 4*gib)}}))(t)
	c := newContainer(t, d, "k")
	must.Do(t, d.registerIn(c, "keep", "llm"))
	diesAsItComesBack(t, d, c, []string{"restore.pool.settled", "restore.pool", "restore.ledger"}, func(after string) {
		if p := d.pools()["llm"]; p.State != api.Active || p.Devices[0].Used != gib || p.ProcessCount != 1 {
			t.Fatalf("after a death at %s: %+v\n%s", after, p, d.log())
		}
	})
}
