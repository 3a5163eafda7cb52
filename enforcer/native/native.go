// SPDX-License-Identifier: Apache-2.0

// Package native makes the driver limit cgroups, on the devices on which a trial shows that it does. It owns the wanted limits and the
// limits that the driver last confirmed. One loop per device brings the two together. It retries a failed limit, and restores a lost one,
// as after a reset of the device. A hung device delays neither another device nor a caller of Want.
//
// A limit belongs to a cgroup and is removed with it.
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

// Backend limits the bytes of a device that the processes of a cgroup can hold, whatever they do. cgroup is a directory, device a UUID. Its
// errors are those of package driver: ErrNoLimits, ErrNoController, ErrNoCgroup.
type Backend interface {
	// Limit sets or replaces the limit. Processes keep bytes that they hold beyond it.
	Limit(cgroup, device string, bytes uint64) error
	// Limited returns the limit, or driver.NoLimit without one.
	Limited(cgroup, device string) (uint64, error)
	// Unlimit removes the limit. It succeeds if there is none, or no such cgroup.
	Unlimit(cgroup, device string) error
}

const (
	// timeout is the timeout of one call of the backend.
	timeout = 700 * time.Millisecond
	// rounding is the number of bytes by which a driver may round a limit up.
	rounding = 2 << 20
)

var errLost = errors.New("the driver lost the limit, as after a reset of the device")

// Device is a device on which the backend may enforce limits.
type Device struct {
	UUID  string
	Shown string // its name for people
	Total uint64
	MIG   bool
}

// Options configure a Keeper.
type Options struct {
	Backend Backend // nil without a backend
	// Want is the configured enforcement. With api.Native, Open fails if the backend does not enforce limits on each device.
	Want  api.Enforcement
	Why   string // why the backend enforces on no device, regardless of a trial; "" if it may
	Mount string // mount point of the cgroups
	Trial string // name of the cgroup for trials. It is the same at each start, so that one left by a killed enforcer is reused.

	Interval time.Duration // between attempts at a failed limit
	Recheck  time.Duration // between checks of a limit that the driver accepted

	Log *slog.Logger
	// Tell is called when the driver fails to enforce a cgroup's limit, once until it enforces it again. It must not block.
	Tell func(c cgroup.Path, device string, err error)
}

// Keeper brings the driver's limits to the wanted ones. It is safe for concurrent use.
type Keeper struct {
	options Options
	devices []*device // constant
	ctx     context.Context
	stop    context.CancelFunc
	loops   sync.WaitGroup

	mu      guard.Mutex[guard.Leaf]            // guards limits and changed
	limits  map[cgroup.Path]map[*device]*limit // no inner map is empty
	changed chan struct{}                      // closed and replaced after each attempt
}

type device struct {
	Device
	slot driver.Slot
	wake chan struct{}
	why  string // why the backend does not enforce there, or ""
}

// limit is the wanted limit of a cgroup on a device.
type limit struct {
	bytes uint64
	none  bool // no limit is wanted: remove the driver's

	version uint64 // of the wanted limit; 0 before the first Want
	tried   uint64 // version of the last attempt
	err     error  // result of the last attempt
	refused bool   // the cgroup cannot have a limit, and goes without
	told    bool   // Tell was called since the driver last enforced it
}

func (l *limit) settled() bool { return l.refused || l.version == l.tried && l.err == nil }

// Open tries on which devices the backend enforces limits, and starts the loops.
func Open(devices []Device, o Options) (*Keeper, error) {
	k := &Keeper{options: o, limits: make(map[cgroup.Path]map[*device]*limit), changed: make(chan struct{})}
	for _, has := range devices {
		d := &device{Device: has, slot: driver.NewSlot(), wake: make(chan struct{}, 1), why: o.Why}
		if d.why == "" {
			d.why = k.try(d)
		}
		if o.Want == api.Native && d.why != "" {
			return nil, fmt.Errorf("enforcement = %q is not possible on device %s: %s: set %q, which uses it where it works", api.Native, d.Shown, d.why, api.Auto)
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

// Close ends the loops. The limits stay for the next Keeper.
func (k *Keeper) Close() {
	k.stop()
	k.loops.Wait()
}

// Anywhere reports whether the backend enforces limits on any device.
func (k *Keeper) Anywhere() bool {
	for _, d := range k.devices {
		if d.why == "" {
			return true
		}
	}
	return false
}

// Enforces returns which part enforces limits on a device, and why, as a clause.
func (k *Keeper) Enforces(uuid string) (by api.Enforcement, why string) {
	switch d := k.device(uuid); {
	case d == nil:
		return api.Intercept, "there is no NVML"
	case d.why == "":
		return api.Native, "the driver enforces limits of cgroups"
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

// Inherit records that a cgroup may have limits from an earlier enforcer. The next Want removes those that it does not set.
func (k *Keeper) Inherit(c cgroup.Path) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		k.of(c, d)
	}
}

// of returns a cgroup's limit on a device, and adds it if necessary. Called with mu held.
func (k *Keeper) of(c cgroup.Path, d *device) *limit {
	if k.limits[c] == nil {
		k.limits[c] = make(map[*device]*limit)
	}
	if k.limits[c][d] == nil {
		k.limits[c][d] = &limit{}
	}
	return k.limits[c][d]
}

// forget removes a limit from the Keeper. Called with mu held.
func (k *Keeper) forget(c cgroup.Path, d *device) {
	if delete(k.limits[c], d); len(k.limits[c]) == 0 {
		delete(k.limits, c)
	}
}

// Want sets the limits of a cgroup, in bytes by device, on the devices on which the backend enforces limits. It removes the limits of other
// devices. It does not block: see Reach.
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

// Reach waits until the limits of the cgroups are set, or an attempt has failed. Then it returns the device and the error.
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

// unsettled returns a device with an attempt to be made, and one with a failed attempt. Called with mu held.
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

// Drop removes the limits of a cgroup before the cgroup is removed. A failed removal is retried until the cgroup is gone.
func (k *Keeper) Drop(ctx context.Context, c cgroup.Path) {
	k.Want(c, nil)
	_, _ = k.Reach(ctx, c) // Tell reports the error
}

// By returns which part enforces a cgroup's limit on a device.
func (k *Keeper) By(c cgroup.Path, uuid string) api.Enforcement {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.limits[c][k.device(uuid)]; l != nil && l.version > 0 && !l.none && !l.refused && l.err == nil {
		return api.Native
	}
	return api.Intercept
}
