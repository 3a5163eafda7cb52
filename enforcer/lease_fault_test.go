// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

func newTimedDaemon(t *testing.T) *daemon {
	d := newDaemon(t)
	config := filepath.Join(d.dir, "config.toml")
	text := must.Get(os.ReadFile(config))(t)
	must.Do(t, os.WriteFile(config, append(text, "\n[expiry]\ngrace = \"100ms\"\n"...), 0o600))
	return d
}

// The enforcer dies at a step of a slice's expiry, and the next one continues from there.
func TestAnEndThatHasBegunComesToItsEndWhateverTheEnforcerDiesOf(t *testing.T) {
	for _, point := range []string{"expire.marked", "expire.closed", "expire.asked", "expire.noted", "expire.killed"} {
		t.Run(point, func(t *testing.T) {
			_ = os.Remove(newCgroup(t)) // skips the test before anything is built
			d := newTimedDaemon(t)
			d.start(point)
			c, keep := newContainer(t, d, "c"), newContainer(t, d, "k")
			must.Do(t, d.register(keep, "keep"))
			request := c.request("c")
			request.TTL = time.Second
			must.Do(t, d.registerAs(c, request))
			p := c.init
			p.must("attach")
			p.must("stubborn")
			p.must("device %s %d", hex0, 80*gib)
			d.died(point)
			if point != "expire.marked" && point != "expire.killed" {
				p.expect("refused", "charge 0 1")
			}
			if !d.start("") {
				t.Fatalf("it does not start again\n%s", d.log())
			}
			p.ended()
			eventually(t, "the other slice alone is left", func() bool {
				dirs, _ := os.ReadDir(filepath.Join(d.dir, "run", "slices"))
				return len(d.ids()) == 1 && len(dirs) == 1
			})
			if s := d.ids()["keep"]; s.State != api.Active {
				t.Fatalf("keep is %+v\n%s", s, d.log())
			}
		})
	}
}

// The enforcer dies while a quota on two devices is changed: then both have the new one, or both the old.
func TestAChangeIsWholeWhateverTheEnforcerDiesOf(t *testing.T) {
	for _, point := range []string{"set.stored", "set.limited", "set.limited:2", "set.done"} {
		t.Run(point, func(t *testing.T) {
			_ = os.Remove(newCgroup(t)) // skips the test before anything is built
			d := newDaemon(t)
			d.start(point)
			c := newContainer(t, d, "c")
			request := c.request("c")
			request.Quotas = []api.Quota{on(api.AllDevices, 4*gib)}
			must.Do(t, d.registerAs(c, request))
			p := c.init
			p.must("attach")
			p.must("device %s %d", hex0, 80*gib)
			p.must("device %s %d", hex1, 80*gib)
			p.must("charge 1 %d", 3*gib)
			ttl := time.Hour
			_, err := d.Change(context.Background(), "c", api.ChangeRequest{Quotas: []api.Quota{on(api.AllDevices, 2*gib)}, TTL: &ttl})
			if err == nil {
				t.Fatal("it answered, and should be dead")
			}
			d.died(point)
			if !d.start("") {
				t.Fatalf("it does not start again\n%s", d.log())
			}
			s := d.ids()["c"]
			if s.State != api.Active || len(s.Devices) != 2 || s.Devices[0].Limit != 2*gib || s.Devices[1].Limit != 2*gib || s.Devices[1].Used != 3*gib || s.TTL != ttl {
				t.Fatalf("%+v\n%s", s, d.log())
			}
			p.must("charge 0 %d", 2*gib)
			p.expect("refused", "charge 0 1")
			p.expect("refused", "charge 1 1")
			// And a limit that a process overwrote is found.
			d.kill()
			if !d.start("") {
				t.Fatalf("it does not start again\n%s", d.log())
			}
			if s := d.ids()["c"]; s.State != api.Active {
				t.Fatalf("%+v\n%s", s, d.log())
			}
		})
	}
}
