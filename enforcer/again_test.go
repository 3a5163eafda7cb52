// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// Kills the enforcer at named points and at random times while slices are created and released. A slice must survive if its creation was confirmed,
// and be gone if its release was. All the while programs with the real interceptor and the simulated driver compete for the last byte of a slice
// (test/interceptor/programs/race.c).
func TestSlicesSurviveRepeatedKillsOfTheEnforcer(t *testing.T) {
	rounds := 2 * (len(points) + 3)
	if os.Getenv("GPUSLICE_LONG") != "" {
		rounds *= 2
	}
	_ = os.Remove(newCgroup(t)) // skips the test before anything is built
	d := newDaemon(t)
	d.start("")
	w := newWitness(t, d)

	places := slices.Concat(points, []string{"restore.ledger", "restore.settled", "restore.listening"})
	var named, timed int
	for n := range rounds {
		point := ""
		if n%2 == 0 {
			point = places[n/2%len(places)]
			named++
		} else {
			timed++
		}
		l := &life{daemon: d, t: t, id: fmt.Sprint("r", n)}
		l.round(point)
		l.check(point)
		w.check()
	}
	w.stop()
	t.Logf("%d deaths of the enforcer, %d at named points and %d at random times; %d races beside them, all exact, and %d that did not begin because no enforcer ran",
		rounds, named, timed, w.races, w.late)
}

// life is a slice that meets deaths of the enforcer.
type life struct {
	*daemon
	t    *testing.T
	id   string
	c    *container
	both []*proc

	promised bool // its creation was confirmed, and no release requested
	released bool
}

// round restarts the enforcer and uses a slice until the enforcer dies: at point, or at a random time if that is empty.
func (l *life) round(point string) {
	l.kill()
	l.c = newContainer(l.t, l.daemon, l.id)
	l.both = []*proc{l.c.init}
	if !l.start(point) { // the point is in start itself
		return
	}
	if point == "" {
		victim := l.cmd.Process
		timer := time.AfterFunc(time.Duration(rand.IntN(40_000))*time.Microsecond, func() { _ = victim.Kill() })
		defer timer.Stop()
	}
	init := l.c.init
	for _, step := range []func(){
		func() { l.promised = l.register(l.c, l.id) == nil },
		func() { init.ask("attach") },
		func() { init.ask("device %s %d", hex0, 80*gib) },
		func() { init.ask("charge 0 %d", gib) },
		func() { init.tell("exec"); init.ask("attach") },
		func() {
			second := start(l.t, l.c.link, l.c.cgroup)
			l.both = append(l.both, second)
			second.ask("attach")
			second.ask("charge 0 %d", gib)
			second.kill()
			// Waits for the exit to be settled before the release.
			eventually(l.t, "it is settled, or the enforcer is dead", func() bool {
				s, err := l.Slice(context.Background(), l.id)
				return err != nil || s.ProcessCount <= 1
			})
		},
		func() {
			l.promised = false // without an answer, either may have happened
			_, err := l.Release(context.Background(), l.id, 0, true)
			l.released = err == nil
		},
		func() {
			init.kill() // ends the lingering release
			if point != "" {
				return
			}
			eventually(l.t, "it is cleared away, or the enforcer is dead", func() bool {
				_, err := os.Stat(l.dirOf())
				return os.IsNotExist(err) || !l.alive()
			})
		},
	} {
		if !l.alive() {
			break
		}
		step()
		if !l.promised && !l.released { // the creation failed, or the release was not answered
			break
		}
	}
	if point == "" || strings.HasPrefix(point, "restore.") {
		l.kill() // the point may not have been reached, as with nothing to restore
		return
	}
	l.died(point)
}

func (l *life) dirOf() string {
	bind, err := os.Readlink(l.c.link)
	if err != nil {
		return filepath.Join(l.dir, "none")
	}
	return filepath.Dir(bind)
}

func (d *daemon) alive() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

func (l *life) check(point string) {
	l.t.Helper()
	l.startsAgain(point)
	s, there := l.ids()[l.id]
	switch {
	case l.promised && (!there || s.State != api.Active):
		l.t.Fatalf("after a death at %q a slice that was promised is lost: %+v\n%s", point, s, l.log())
	case l.released && there:
		l.t.Fatalf("after a death at %q a slice that was released is back: %+v\n%s", point, s, l.log())
	}
	if l.promised {
		init := l.c.init
		attach(init)
		init.must("device %s %d", hex0, 80*gib)
		eventually(l.t, "only what the living hold is charged", func() bool {
			s, err := l.Slice(context.Background(), l.id)
			return err == nil && s.State == api.Active && s.Devices[0].Used == 0 && s.ProcessCount == 1
		})
		init.must("charge 0 %d", 4*gib)
		init.expect("refused", "charge 0 1")
	}
	for _, p := range l.both {
		p.kill()
	}
	eventually(l.t, "nothing of it is left after a death at "+point, func() bool {
		dirs, err := os.ReadDir(filepath.Join(l.dir, "run", "slices"))
		return err == nil && len(dirs) == 1 && len(l.ids()) == 1 // the witness's slice
	})
	_ = os.Remove(l.c.cgroup) // keeps cgroups from piling up
}

// witness is a slice in which real programs compete for the last byte.
type witness struct {
	t           *testing.T
	d           *daemon
	c           *container
	end, ended  chan struct{}
	races, late int
	wrong       string // set before ended is closed
}

const witnessed = 5 * gib // with 5 processes, their parent, and contexts of 512 MiB

func newWitness(t *testing.T, d *daemon) *witness {
	t.Helper()
	bin := must.Get(filepath.Abs("../bin"))(t)
	library, driver := filepath.Join(bin, api.LibraryName), filepath.Join(bin, "fakecuda", "libcuda.so.1")
	for _, file := range []string{library, driver} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("%s is needed: make test-programs", file)
		}
	}
	program := filepath.Join(d.dir, "race")
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-I../interceptor", "-o", program,
		"../test/interceptor/programs/race.c", driver, "-ldl", "-lpthread").CombinedOutput()
	must.Do(t, err, out)
	w := &witness{t: t, d: d, end: make(chan struct{}), ended: make(chan struct{})}
	w.c = newContainer(t, d, "w")
	request := w.c.request("witness")
	request.Quotas = []api.Quota{on(api.AllDevices, witnessed)}
	must.Do(t, d.registerAs(w.c, request))
	go w.run(program, []string{
		"LD_PRELOAD=" + library, api.DirEnv + "=" + w.c.link,
		"LD_LIBRARY_PATH=" + filepath.Dir(driver), "FAKECUDA_STATE=" + filepath.Join(d.dir, "card"), "FAKECUDA_DEVICES=2",
	})
	t.Cleanup(func() {
		for pid := range processes(t, w.c.cgroup) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		w.stop()
	})
	return w
}

// run starts races of a few seconds until end is closed. After each race it checks that all bytes were released.
func (w *witness) run(program string, env []string) {
	defer close(w.ended)
	for {
		select {
		case <-w.end:
			return
		default:
		}
		cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, w.c.cgroup,
			program, "3", "5", "2", fmt.Sprint(witnessed), "0", "512")
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		switch {
		case err == nil:
			w.races++
		case bytes.HasPrefix(out, []byte("seed ")) && bytes.Count(out, []byte("\n")) == 1 && errors.As(err, new(*exec.ExitError)) && cmd.ProcessState.ExitCode() == 1:
			// The first contexts failed: no enforcer answered which devices the slice has.
			w.late++
		default:
			w.wrong = fmt.Sprintf("%v\n%s", err, out)
			return
		}
	}
}

func (w *witness) check() {
	w.t.Helper()
	select {
	case <-w.ended:
		w.t.Fatalf("the slice's quota was not kept: %s\n%s", w.wrong, w.d.log())
	default:
	}
	s, err := w.d.Slice(context.Background(), "witness")
	if err != nil || s.State != api.Active {
		w.t.Fatalf("the witness's slice is %+v, %v\n%s", s, err, w.d.log())
	}
	for _, u := range s.Devices {
		if u.Used+u.Overhead > witnessed || u.Peak > witnessed || u.Limit != witnessed {
			w.t.Fatalf("over the quota of %d: %+v", witnessed, u)
		}
	}
}

func (w *witness) stop() {
	w.t.Helper()
	select {
	case <-w.end:
		<-w.ended
		return
	default:
	}
	close(w.end)
	<-w.ended
	if !w.t.Failed() && (w.wrong != "" || w.races == 0) {
		w.t.Fatalf("%d races went well; the last one: %s\n%s", w.races, w.wrong, w.d.log())
	}
}
