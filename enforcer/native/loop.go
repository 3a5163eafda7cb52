// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// task is one limit that the loop has to set or check.
type task struct {
	cgroup  cgroup.Path
	bytes   uint64
	none    bool
	version uint64
	check   bool // the driver accepted it: check that it is still set
}

// keep is a device's loop. It holds no lock during a call of the driver.
func (k *Keeper) keep(d *device) {
	ticker := time.NewTicker(k.options.Interval)
	defer ticker.Stop()
	checked := time.Now()
	for {
		var failed, all bool // retry failed limits; check all limits
		select {
		case <-k.ctx.Done():
			return
		case <-d.wake:
		case now := <-ticker.C:
			failed = true
			if all = now.Sub(checked) >= k.options.Recheck; all {
				checked = now
			}
		}
		hangs := false
		for _, t := range k.tasks(d, failed, all) {
			switch {
			case k.ctx.Err() != nil:
				return
			case !hangs:
				hangs = errors.Is(k.do(d, t), driver.ErrHangs)
			case !t.check: // this one would hang, too
				k.settle(d, t, driver.ErrHangs)
			}
		}
	}
}

// tasks returns the limits to set: those without an attempt, with failed also those with a failed one, and with all also the others, as
// checks.
func (k *Keeper) tasks(d *device, failed, all bool) (due []task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c, limits := range k.limits {
		l := limits[d]
		if l == nil || l.version == 0 || l.refused {
			continue
		}
		t := task{c, l.bytes, l.none, l.version, l.settled()}
		if l.version != l.tried || failed && !t.check || all {
			due = append(due, t)
		}
	}
	return due
}

func (k *Keeper) do(d *device, t task) error {
	if !t.cgroup.Exists() { // the kernel has removed its limits
		k.mu.Lock()
		defer k.mu.Unlock()
		k.forget(t.cgroup, d)
		k.announce()
		return nil
	}
	if t.check {
		has, err := driver.Ask(d.slot, timeout, func() (uint64, error) { return k.options.Backend.Limited(t.cgroup.Dir(), d.UUID) })
		if err != nil || has <= t.bytes+min(rounding, driver.NoLimit-t.bytes) {
			return err
		}
		k.settle(d, t, errLost)
	}
	_, err := driver.Ask(d.slot, timeout, func() (struct{}, error) {
		if t.none {
			return struct{}{}, k.unlimit(t.cgroup.Dir(), d.UUID)
		}
		return struct{}{}, k.limit(t.cgroup.Dir(), d.UUID, t.bytes)
	})
	k.settle(d, t, err)
	return err
}

// settle records the result of an attempt, and reports the first failure.
func (k *Keeper) settle(d *device, t task, err error) {
	k.mu.Lock()
	l := k.limits[t.cgroup][d]
	tells := l != nil && err != nil && !l.told && !errors.Is(err, driver.ErrNoCgroup) // the cgroup was removed just now
	held := l != nil && err == nil && l.told
	k.mu.Unlock()
	if tells {
		k.options.Log.Error("cannot set the driver's limit: the interceptor enforces until a retry succeeds", "device", d.UUID, "cgroup", t.cgroup.String(), "err", err)
		k.options.Tell(t.cgroup, d.UUID, err)
	}
	if held && !t.none {
		k.options.Log.Info("the driver's limit is in force again", "device", d.UUID, "cgroup", t.cgroup.String())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if l = k.limits[t.cgroup][d]; l == nil {
		return
	}
	l.told = l.told && err != nil || tells
	l.err, l.tried = err, t.version
	switch {
	case l.version != t.version: // the wanted limit has changed since
	case err == nil && t.none:
		k.forget(t.cgroup, d)
	case errors.Is(err, driver.ErrNoController) && k.options.Want != api.Native:
		l.refused = true
	}
	k.announce()
}

// announce wakes the callers of Reach. Called with mu held.
func (k *Keeper) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}
