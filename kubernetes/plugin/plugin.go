// SPDX-License-Identifier: Apache-2.0

// Package plugin serves the kubelet: it passes the calls of Kubernetes' helper to the packages that implement them, and reports
// results in metrics, on the claim and on pods. A failure to report never fails a call.
package plugin

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// Preparer prepares claims.
type Preparer interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error)
	Unprepare(ctx context.Context, uid types.UID) error
}

// Plugin implements kubeletplugin.DRAPlugin.
type Plugin struct {
	Preparer Preparer
	Node     string
	Offer    inventory.Offer
	Status   *Status
	Metrics  *Metrics
	Log      *slog.Logger
	// Fatal is called with a permanent error.
	Fatal func(error)

	mu     sync.Mutex
	health *kubeletplugin.DeviceHealthReport // nil while the enforcer is unreachable
	newer  chan struct{}                     // closed when health changes
}

var _ kubeletplugin.DRAPlugin = (*Plugin)(nil)

// PrepareResourceClaims prepares the claims concurrently: a claim waiting for the enforcer delays no other.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range claims {
		all.Go(func() {
			begin := time.Now()
			devices, err := p.Preparer.Prepare(ctx, c)
			p.Metrics.prepared(time.Since(begin), err)
			p.Status.Prepared(c, err)
			log := p.Log.With("claim", c.Namespace+"/"+c.Name, "uid", c.UID, "took", time.Since(begin))
			if err != nil {
				log.Warn("claim refused", "err", err)
			} else {
				log.Info("claim prepared", "devices", len(devices))
			}
			mu.Lock()
			defer mu.Unlock()
			results[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
		})
	}
	all.Wait()
	return results, nil
}

// UnprepareResourceClaims unprepares the claims concurrently.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range claims {
		all.Go(func() {
			err := p.Preparer.Unprepare(ctx, c.UID)
			p.Metrics.unprepared(err)
			p.Log.Info("claim given back", "claim", c.String(), "uid", c.UID, "err", err)
			mu.Lock()
			defer mu.Unlock()
			results[c.UID] = err
		})
	}
	all.Wait()
	return results, nil
}

// HandleError logs recoverable errors of background work and passes others to Fatal.
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.Log.Warn(msg, "err", err)
		return
	}
	p.Fatal(err)
}

// healthEvery is the minimum time between two reports. Without one for half a minute the kubelet sets the health to unknown.
const healthEvery = 5 * time.Second

// SetHost stores a state of the enforcer for the health reports and for Status.
func (p *Plugin) SetHost(h inventory.Host) {
	report := &kubeletplugin.DeviceHealthReport{}
	for _, d := range h.Devices {
		health := kubeletplugin.DeviceHealth{PoolName: p.Node, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now()}
		if why := inventory.Unhealthy(h.Health, d); why != "" {
			health.Health, health.Message = kubeletplugin.HealthStatusUnhealthy, why
		}
		for _, health.DeviceName = range p.Offer.Names(d) {
			report.Devices = append(report.Devices, health)
		}
	}
	p.set(report)
	p.Status.setPools(h.Pools)
}

// Away records that the enforcer has stopped answering.
func (p *Plugin) Away() { p.set(nil) }

func (p *Plugin) set(health *kubeletplugin.DeviceHealthReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health = health
	if p.newer != nil {
		close(p.newer)
		p.newer = nil
	}
}

// latest returns the newest report, and a channel that is closed when there is another.
func (p *Plugin) latest() (health *kubeletplugin.DeviceHealthReport, newer <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newer == nil {
		p.newer = make(chan struct{})
	}
	return p.health, p.newer
}

// WatchHealthStatus sends health reports to the kubelet, which shows them on pods. Without the enforcer it sends none, and health
// becomes unknown.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, newer := p.latest()
		if report != nil {
			select {
			case <-ctx.Done():
				return nil
			case reports <- *report:
			}
		}
		sent := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		}
		if wait := healthEvery - time.Since(sent); report != nil && wait > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
		}
	}
}
