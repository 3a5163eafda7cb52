// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuslice/gpuslice/api"
)

// Times are the intervals of a Publisher. Tests use shorter ones.
type Times struct {
	Poll    time.Duration // interval of requests to the enforcer without events
	Write   time.Duration // minimum between two writes, which then cover thousands of pods
	Order   time.Duration // minimum before a write of the order alone, which is a preference
	Timeout time.Duration // time without an answer until the enforcer counts as unreachable
}

// DefaultTimes limit a node's writes to twelve a minute, and those due to pods to two.
var DefaultTimes = Times{Poll: 10 * time.Second, Write: 5 * time.Second, Order: 30 * time.Second, Timeout: 3 * time.Second}

// Enforcer is the part of the enforcer's API that Publisher uses.
type Enforcer interface {
	Info(ctx context.Context) (api.Info, error)
	Devices(ctx context.Context) ([]api.Device, error)
	Pools(ctx context.Context) ([]api.Pool, error)
	Health(ctx context.Context) (api.Health, error)
	Events(ctx context.Context, instance string, since uint64, follow bool, each func(api.Event) error) error
}

// Publisher keeps a node's ResourceSlices up to date with the enforcer's devices.
type Publisher struct {
	Enforcer Enforcer
	Node     string
	Offer    Offer
	Times    Times
	Log      *slog.Logger
	// Publish replaces the published resources.
	Publish func(ctx context.Context, resources resourceslice.DriverResources) error
	// OnHost receives each answer of the enforcer, for all other parts of the driver.
	OnHost func(Host)
	// OnReached is called when the enforcer starts to answer, OnAway when it stops.
	OnReached, OnAway func()
	// Event receives the enforcer's events.
	Event func(api.Event)
	// Written is called after each write.
	Written func()

	published []resourceapi.Device
	last      Host        // last answers of the enforcer
	another   atomic.Bool // the enforcer may have been replaced
}

// Run publishes until ctx ends. before lists the devices that an earlier driver published, for a start without the enforcer.
func (p *Publisher) Run(ctx context.Context, before []resourceapi.Device) {
	p.published = before
	changed := make(chan struct{}, 1)
	go p.follow(ctx, changed)

	var (
		reached   bool
		answered  = time.Now() // of the last answer
		written   time.Time
		compared  time.Time // of the last difference found
		timer     = time.NewTimer(0)
		published = false // by this driver
		soon      = false // a request is due because of an event
	)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !soon {
				soon = true
				timer.Reset(max(p.Times.Write/20, p.Times.Write-time.Since(compared))) // one request covers the events until then
			}
			continue
		case <-timer.C:
			soon = false
		}
		var devices []resourceapi.Device
		host, err := p.ask(ctx)
		next := p.Times.Poll
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			answered = time.Now()
			if !reached {
				p.Log.Info("enforcer reached", "devices", len(host.Devices))
				reached = true
				p.OnReached()
			}
			p.OnHost(host)
			devices = p.Offer.Of(host)
		case time.Since(answered) < p.Times.Timeout:
			timer.Reset(p.Times.Timeout / 4)
			continue
		default:
			next = min(next, time.Second)
			if reached || !published && len(before) > 0 {
				p.Log.Warn("the enforcer does not answer: its devices are tainted until it does", "err", err)
				p.OnAway()
			}
			reached = false
			devices = unreachable(p.published)
		}
		if equality.Semantic.DeepEqual(devices, p.published) && (published || err != nil) {
			timer.Reset(next)
			continue
		}
		least := p.Times.Write
		if published && reordered(devices, p.published) {
			least = max(least, p.Times.Order)
		}
		compared = time.Now()
		if wait := least - compared.Sub(written); wait > 0 {
			timer.Reset(min(wait, next)) // it may change again until then
			continue
		}
		if err := p.Publish(ctx, resources(p.Node, devices)); err != nil {
			p.Log.Error("devices not published", "err", err)
		} else {
			p.published, published = slices.Clone(devices), true
			p.Written()
		}
		written = time.Now()
		timer.Reset(next)
	}
}

// reordered reports whether a and b differ only in order.
func reordered(a, b []resourceapi.Device) bool {
	byName := func(all []resourceapi.Device) []resourceapi.Device {
		return slices.SortedFunc(slices.Values(all), func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	}
	return equality.Semantic.DeepEqual(byName(a), byName(b))
}

func (p *Publisher) ask(ctx context.Context) (Host, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Times.Timeout)
	defer cancel()
	h := &p.last
	if another := p.another.Swap(false); another || h.Driver == "" {
		info, err := p.Enforcer.Info(ctx)
		if err != nil {
			p.another.Store(true)
			return *h, err
		}
		h.Driver = info.Driver
	}
	var err error
	if h.Health, err = p.Enforcer.Health(ctx); err != nil {
		return *h, err
	}
	if h.Devices, err = p.Enforcer.Devices(ctx); err != nil {
		return *h, err
	}
	h.Pools, err = p.Enforcer.Pools(ctx)
	return *h, err
}

// follow signals changed when an event may have changed the free memory.
func (p *Publisher) follow(ctx context.Context, changed chan<- struct{}) {
	var instance string
	var since uint64
	for ctx.Err() == nil {
		err := p.Enforcer.Events(ctx, instance, since, true, func(e api.Event) error {
			if e.Kind != api.EventMissed || e.Cause == api.MissedRestarted {
				instance = e.Instance
			}
			since = e.Seq
			p.Event(e)
			switch e.Kind {
			case api.EventRegistered, api.EventReleased, api.EventChanged, api.EventPoolCreated, api.EventPoolChanged, api.EventPoolDeleted, api.EventMissed:
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			return nil
		})
		p.another.Store(true)
		if err != nil && ctx.Err() == nil && !errors.Is(err, api.ErrUnreachable) {
			p.Log.Warn("following the enforcer's events failed: polling it instead", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.Times.Timeout / 2):
		}
	}
}
