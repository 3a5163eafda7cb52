// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (d *daemon) burst(round, n int) map[string]bool {
	var all sync.WaitGroup
	var mu sync.Mutex
	yes := make(map[string]bool)
	for i := range n {
		all.Go(func() {
			id := fmt.Sprintf("b%d-%d", round, i)
			_, err := d.Register(context.Background(), api.RegisterRequest{
				ID: id, Session: true, PID: os.Getpid(), UID: uint32(os.Getuid()), Quotas: []api.Quota{on(gpu0, gib)}})
			mu.Lock()
			defer mu.Unlock()
			yes[id] = err == nil
		})
	}
	all.Wait()
	return yes
}

// Concurrent registrations share a disk write, in the order of their decisions. However the enforcer is killed, the next one restores all
// that were confirmed.
func TestKillDuringManyRegistrationsLosesNoAcknowledgedOne(t *testing.T) {
	d := newDaemon(t)
	rounds := 4
	if os.Getenv("GPUSLICE_LONG") != "" {
		rounds = 20
	}
	promised, lost := 0, 0
	for round := range rounds {
		// At the n-th passing of a point, or at a random time.
		point := ""
		if points := []string{"register.decided", "register.stored", "register.listening"}; round%(len(points)+1) < len(points) {
			point = fmt.Sprintf("%s:%d", points[round%(len(points)+1)], 1+rand.IntN(60))
		}
		d.start(point)
		if point == "" {
			victim := d.cmd.Process
			time.AfterFunc(time.Duration(rand.IntN(30_000))*time.Microsecond, func() { _ = victim.Kill() })
		}
		yes := d.burst(round, 100)
		d.died(point)
		d.startsAgain(point)
		there := d.ids()
		for id, was := range yes {
			s, ok := there[id]
			if was && (!ok || s.State != api.Active) {
				t.Errorf("after a death at %q slice %s, which was promised, is %+v", point, id, s)
			}
			if was {
				promised++
			} else if !ok {
				lost++
			}
		}
		d.nothingLeft()
		for id := range there {
			must.Get(d.Release(context.Background(), id, 0, true))(t)
		}
		d.kill()
	}
	t.Logf("%d were promised and are there; %d were not, and are not", promised, lost)
	if promised == 0 || lost == 0 {
		t.Errorf("the kills came too early or too late: %d promised, %d lost", promised, lost)
	}
}

// A release before the slice's record is written cancels the registration, which returns an error and leaves nothing.
func TestAReleaseDuringARegistrationLeavesNothing(t *testing.T) {
	h := newHost(t, nil)
	p := start(t, "/nonexistent", "")
	registered, released := 0, 0
	for round := range 100 {
		id := fmt.Sprint("r", round)
		ended := make(chan error, 1)
		go func() {
			var err error
			for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); {
				if _, err = h.Release(context.Background(), id, 0, true); !errors.Is(err, api.ErrNotFound) {
					break
				}
			}
			ended <- err
		}()
		_, err := h.Register(context.Background(), api.RegisterRequest{ID: id, Session: true, PID: p.pid(), Quotas: []api.Quota{on(gpu0, gib)}})
		switch {
		case err == nil:
			registered++
		case errors.Is(err, api.ErrNotFound):
			released++
		default:
			t.Fatal(err)
		}
		must.Do(t, <-ended)
	}
	expect.Equal(t, len(slicesOf(t, h)), 0, "slices are left")
	must.Len(t, must.Get(os.ReadDir(h.options.RunDir+"/slices"))(t), 0, "left")
	t.Logf("%d were registered and then released, %d were released before that", registered, released)
}
