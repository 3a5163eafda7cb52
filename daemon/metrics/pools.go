// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
)

// Pools provides the figures of pools, at most api.MaxPools.
type Pools interface {
	Pools(ctx context.Context) ([]api.Pool, error)
}

var perPoolDevice = []figure[api.PoolUse]{
	{"limit_bytes", "VRAM that the pool's members may keep on the device together.", prometheus.GaugeValue,
		func(d api.PoolUse) uint64 { return d.Limit }},
	{"used_bytes", "VRAM that the members' programs requested and hold.", prometheus.GaugeValue,
		func(d api.PoolUse) uint64 { return d.Used }},
	{"overhead_bytes", "VRAM that the driver holds for the members beyond that: contexts, modules.", prometheus.GaugeValue,
		func(d api.PoolUse) uint64 { return d.Overhead }},
	{"peak_bytes", "The most VRAM that the members held on the device at one time, overhead included.", prometheus.GaugeValue,
		func(d api.PoolUse) uint64 { return d.Peak }},
	{"refusals_total", "Allocations that were refused by the pool's limit.", prometheus.CounterValue,
		func(d api.PoolUse) uint64 { return d.Refusals }},
	{"recovered_bytes_total", "VRAM that was released because its processes had exited.", prometheus.CounterValue,
		func(d api.PoolUse) uint64 { return d.Recovered }},
}

var (
	poolsDesc         = prometheus.NewDesc("gpuslice_pools", "Pools on this host.", nil, nil)
	poolInfoDesc      = prometheus.NewDesc("gpuslice_pool_info", "Always 1; the labels say what the pool is.", []string{"pool", "tenant", "label", "state"}, nil)
	poolMembersDesc   = prometheus.NewDesc("gpuslice_pool_members", "Slices that are in the pool.", []string{"pool"}, nil)
	poolProcessesDesc = prometheus.NewDesc("gpuslice_pool_processes", "Processes of the pool's members that have attached.", []string{"pool"}, nil)
	poolDeviceDescs   = describeAll(perPoolDevice, "pool")
)

type poolCollector struct {
	pools Pools
	log   *slog.Logger
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- poolsDesc
	descs <- poolInfoDesc
	descs <- poolMembersDesc
	descs <- poolProcessesDesc
	for _, d := range poolDeviceDescs {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	pools, err := c.pools.Pools(ctx)
	if err != nil {
		c.log.Error("the pools' metrics cannot be collected", "err", err)
		metrics <- prometheus.NewInvalidMetric(poolsDesc, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(poolsDesc, float64(len(pools)))
	for _, p := range pools {
		gauge(poolInfoDesc, 1, p.Name, p.Tenant, p.Label, string(p.State))
		gauge(poolMembersDesc, float64(len(p.Members)), p.Name)
		gauge(poolProcessesDesc, float64(p.ProcessCount), p.Name)
		for _, d := range p.Devices {
			for i, m := range perPoolDevice {
				metrics <- prometheus.MustNewConstMetric(poolDeviceDescs[i], m.kind, float64(m.value(d)), p.Name, d.Device)
			}
		}
	}
}
