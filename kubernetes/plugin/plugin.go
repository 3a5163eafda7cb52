// SPDX-License-Identifier: Apache-2.0

// Package plugin is what the kubelet talks to: it carries the calls of Kubernetes' helper to the packages that do the work, and says
// what came of them: in metrics, on the claim, and on the pods. None of that can make a call fail.
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

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// Preparer prepares claims.
type Preparer interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error)
	Unprepare(ctx context.Context, uid types.UID) error
}

// Enforcer is what is asked of it.
type Enforcer interface {
	Devices(ctx context.Context) ([]api.Device, error)
	Health(ctx context.Context) (api.Health, error)
}

// Plugin implements kubeletplugin.DRAPlugin.
type Plugin struct {
	Preparer Preparer
	Enforcer Enforcer
	Node     string
	Status   *Status
	Metrics  *Metrics
	Log      *slog.Logger
	// Fatal is called with an error that trying again does not mend.
	Fatal func(error)
}

var _ kubeletplugin.DRAPlugin = (*Plugin)(nil)

// PrepareResourceClaims prepares all claims at once: one that waits for the enforcer delays no other.
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

// UnprepareResourceClaims gives claims back.
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

// HandleError hears of what goes on in the background.
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.Log.Warn(msg, "err", err)
		return
	}
	p.Fatal(err)
}

// healthEvery is well within the half minute after which the kubelet takes a device's health for unknown.
const healthEvery = 5 * time.Second

// WatchHealthStatus tells the kubelet, which tells it on pods. Of an enforcer that is away nothing is told: health then becomes unknown.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		if report, err := p.health(ctx); err != nil {
			p.Log.Debug("health not known", "err", err)
		} else {
			select {
			case <-ctx.Done():
				return nil
			case reports <- report:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(healthEvery):
		}
	}
}

func (p *Plugin) health(ctx context.Context) (report kubeletplugin.DeviceHealthReport, err error) {
	devices, err := p.Enforcer.Devices(ctx)
	if err != nil {
		return report, err
	}
	health, err := p.Enforcer.Health(ctx)
	if err != nil {
		return report, err
	}
	for _, d := range devices {
		h := kubeletplugin.DeviceHealth{
			PoolName: p.Node, DeviceName: inventory.DeviceName(d.UUID), Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now(),
		}
		if why := inventory.Unhealthy(health, d.UUID); why != "" {
			h.Health, h.Message = kubeletplugin.HealthStatusUnhealthy, why
		}
		report.Devices = append(report.Devices, h)
	}
	return report, nil
}
