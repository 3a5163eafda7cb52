// SPDX-License-Identifier: Apache-2.0

// Package native has the driver itself hold cgroups to limits, on the devices where a trial shows that it does. It owns what limits are
// wanted and what the driver was last seen to have; one loop for each device brings the second to the first. So a driver that fails is
// told again, one that lost a limit, as by a reset, is told anew, and one that hangs delays neither another device nor who wants a limit.
//
// A limit stands on a cgroup and goes with it: nothing of it is left when the cgroup is removed first.
package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Backend holds the processes of a cgroup to a number of bytes of a device by itself, whatever they do. cgroup is a
// directory, device a UUID. Its errors are those of package driver: ErrNoLimits, ErrNoController, ErrNoCgroup.
type Backend interface {
	// Limit replaces what was set before. What is held beyond it stays with whoever holds it.
	Limit(cgroup, device string, bytes uint64) error
	// Limited is what was set; driver.NoLimit if nothing was.
	Limited(cgroup, device string) (uint64, error)
	// Unlimit takes away what was set; that nothing was, or that the cgroup is gone, is no error.
	Unlimit(cgroup, device string) error
}

const (
	// timeout of one question to the backend.
	timeout = 700 * time.Millisecond
	// rounding is by how many bytes a limit may be more than what was set, with a driver that rounds it.
	rounding = 2 << 20
)

var errLost = errors.New("the driver has not the limit any more that was set, as after a reset")

// Device is one that the backend may enforce on.
type Device struct {
	UUID  string
	Shown string // as people know it
	Total uint64
	MIG   bool
}

// Options of a Keeper.
type Options struct {
	Backend Backend // nil: there is none
	// Want is whether the backend is to enforce: with api.Native there is no Keeper where it does not.
	Want  api.Enforcement
	Why   string // why the backend enforces on no device, whatever a trial shows; "" if it may
	Mount string // of the cgroups
	Trial string // the name of the cgroup of a trial, the same at each start: what one that was killed left is not left for ever

	Interval time.Duration // between two attempts to set a limit that failed
	Recheck  time.Duration // between two questions whether the driver has a limit that it took

	Log *slog.Logger
	// Tell is called when the driver does not hold a cgroup to its limit, once until it does again. It must not wait.
	Tell func(c cgroup.Path, device string, err error)
}

// Keeper brings the driver's limits to those that are wanted. Its methods may be called by any number of goroutines.
type Keeper struct {
	options Options
	devices []*device // do not change
	ctx     context.Context
	stop    context.CancelFunc
	loops   sync.WaitGroup

	mu      guard.Mutex[guard.Leaf]            // guards what limits are wanted, and what the driver was last seen to have
	limits  map[cgroup.Path]map[*device]*limit // none is empty
	changed chan struct{}                      // closed when an attempt has ended, and another one is made
}

type device struct {
	Device
	slot driver.Slot
	wake chan struct{}
	why  string // the backend does not enforce there; "" if it does
}

// limit is what a cgroup is to have on a device.
type limit struct {
	bytes uint64
	none  bool // and what the driver has is taken away

	version uint64 // of what is wanted; 0: nobody has said yet
	tried   uint64 // the version of the last attempt
	err     error  // of that one
	refused bool   // the cgroup cannot have one, and does without
	told    bool   // that the driver does not hold it, since it last did
}

func (l *limit) settled() bool { return l.refused || l.version == l.tried && l.err == nil }

// Open tries on which devices the backend enforces.
func Open(devices []Device, o Options) (*Keeper, error) {
	k := &Keeper{options: o, limits: make(map[cgroup.Path]map[*device]*limit), changed: make(chan struct{})}
	for _, has := range devices {
		d := &device{Device: has, slot: driver.NewSlot(), wake: make(chan struct{}, 1), why: o.Why}
		if d.why == "" {
			d.why = k.try(d)
		}
		if o.Want == api.Native && d.why != "" {
			return nil, fmt.Errorf("enforcement = %q cannot be kept on device %s, since %s: %q uses it where it works", api.Native, d.Shown, d.why, api.Auto)
		}
		k.devices = append(k.devices, d)
		if o.Why == "" {
			by, why := k.Enforces(d.UUID)
			o.Log.Info("enforcement", "device", d.UUID, "by", by, "why", why)
		}
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	if o.Backend != nil {
		for _, d := range k.devices {
			k.loops.Go(func() { k.keep(d) })
		}
	}
	return k, nil
}

// Close ends the loops. The limits stay: the next Keeper goes on from them.
func (k *Keeper) Close() {
	k.stop()
	k.loops.Wait()
}

// Anywhere says whether the backend enforces on any device.
func (k *Keeper) Anywhere() bool {
	for _, d := range k.devices {
		if d.why == "" {
			return true
		}
	}
	return false
}

// Enforces says who enforces on a device, and why, in a sentence without its beginning and end.
func (k *Keeper) Enforces(uuid string) (by api.Enforcement, why string) {
	switch d := k.device(uuid); {
	case d == nil:
		return api.Intercept, "there is no NVML"
	case d.why == "":
		return api.Native, "the driver keeps a limit that is set for a cgroup"
	default:
		return api.Intercept, d.why
	}
}

func (k *Keeper) device(uuid string) *device {
	for _, d := range k.devices {
		if d.UUID == uuid {
			return d
		}
	}
	return nil
}

// Inherit says that a cgroup may have limits of an enforcer before this one: those that the next Want does not name are taken away.
func (k *Keeper) Inherit(c cgroup.Path) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		k.of(c, d)
	}
}

// of is a limit, made if there is none. Called with mu held.
func (k *Keeper) of(c cgroup.Path, d *device) *limit {
	if k.limits[c] == nil {
		k.limits[c] = make(map[*device]*limit)
	}
	if k.limits[c][d] == nil {
		k.limits[c][d] = &limit{}
	}
	return k.limits[c][d]
}

// forget is called with mu held.
func (k *Keeper) forget(c cgroup.Path, d *device) {
	if delete(k.limits[c], d); len(k.limits[c]) == 0 {
		delete(k.limits, c)
	}
}

// Want says what a cgroup is to be limited to, in bytes by device, as far as the backend enforces there; on other devices what was
// set is taken away. It waits for nothing: see Reach.
func (k *Keeper) Want(c cgroup.Path, limits map[string]uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		bytes, has := limits[d.UUID]
		has = has && d.why == ""
		if k.limits[c][d] == nil && !has {
			continue
		}
		l := k.of(c, d)
		if l.refused {
			if !has {
				k.forget(c, d)
			}
			continue
		}
		if l.version > 0 && l.none == !has && l.bytes == bytes {
			continue
		}
		l.bytes, l.none = bytes, !has
		l.version++
		d.awake()
	}
}

func (d *device) awake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Reach waits until the limits of the cgroups are as wanted, or an attempt at one has failed: then it says on which device, and why.
func (k *Keeper) Reach(ctx context.Context, cgroups ...cgroup.Path) (device string, err error) {
	guard.MayWait("the driver's limits")
	for {
		k.mu.Lock()
		pending, failed, err := k.unsettled(cgroups)
		changed := k.changed
		k.mu.Unlock()
		if pending == nil && failed == nil {
			return "", nil
		} else if pending == nil {
			return failed.UUID, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return pending.UUID, driver.ErrHangs
		case <-k.ctx.Done():
			return pending.UUID, k.ctx.Err()
		}
	}
}

// unsettled is a device on which an attempt is still to be made, and one on which it failed. Called with mu held.
func (k *Keeper) unsettled(cgroups []cgroup.Path) (pending, failed *device, err error) {
	for _, c := range cgroups {
		for _, d := range k.devices {
			switch l := k.limits[c][d]; {
			case l == nil, l.settled():
			case l.version != l.tried:
				pending = d
			case failed == nil:
				failed, err = d, l.err
			}
		}
	}
	return pending, failed, err
}

// Drop takes the limits of a cgroup away before it goes. What cannot be taken away now is tried again until the cgroup is gone.
func (k *Keeper) Drop(ctx context.Context, c cgroup.Path) {
	k.Want(c, nil)
	_, _ = k.Reach(ctx, c) // Tell has it
}

// By is who holds a cgroup to its limit on a device.
func (k *Keeper) By(c cgroup.Path, uuid string) api.Enforcement {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.limits[c][k.device(uuid)]; l != nil && l.version > 0 && !l.none && !l.refused && l.err == nil {
		return api.Native
	}
	return api.Intercept
}
