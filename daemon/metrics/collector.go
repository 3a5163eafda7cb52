// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
)

// figure is a metric of a holder on a device; value reads it from the API's type.
type figure[Use any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(Use) uint64
}

// describeAll returns the descriptions of figures with the prefix holder and the labels holder and device.
func describeAll[Use any](figures []figure[Use], holder string) []*prometheus.Desc {
	descs := make([]*prometheus.Desc, len(figures))
	for i, f := range figures {
		descs[i] = describe(holder+"_"+f.name, f.help, holder, "device")
	}
	return descs
}

var perDevice = []figure[api.DeviceUse]{
	{"limit_bytes", "VRAM that the slice may keep on the device; absent in record mode.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Limit }},
	{"used_bytes", "VRAM that the slice's programs requested and hold.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Used }},
	{"overhead_bytes", "VRAM that the driver holds for the slice beyond that: contexts, modules.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Overhead }},
	{"bypass_bytes", "Of the overhead, VRAM that processes hold past the ledger: hidden from the interceptor.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Bypass }},
	{"suspended_bytes", "VRAM of the suspended or evicted slice that is in host memory.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Suspended }},
	{"peak_bytes", "The most VRAM that the slice held on the device at one time, overhead included.", prometheus.GaugeValue,
		func(d api.DeviceUse) uint64 { return d.Peak }},
	{"allocations_total", "Allocations that were charged.", prometheus.CounterValue,
		func(d api.DeviceUse) uint64 { return d.Allocations }},
	{"refusals_total", "Allocations that were refused.", prometheus.CounterValue,
		func(d api.DeviceUse) uint64 { return d.Refusals }},
	{"recovered_bytes_total", "VRAM that was released because its processes had exited.", prometheus.CounterValue,
		func(d api.DeviceUse) uint64 { return d.Recovered }},
}

var (
	slicesDesc     = prometheus.NewDesc("gpuslice_slices", "Slices on this host.", nil, nil)
	infoDesc       = prometheus.NewDesc("gpuslice_slice_info", "Always 1; the labels say what the slice is.", []string{"slice", "tenant", "pool", "mode", "state", "name", "pod", "namespace", "image"}, nil)
	deviceUsedDesc = prometheus.NewDesc("gpuslice_device_used_bytes", "Memory of the device that slices hold, overhead included.", []string{"device"}, nil)
	processesDesc  = prometheus.NewDesc("gpuslice_slice_processes", "Processes of the slice that have attached.", []string{"slice"}, nil)
	evictionsDesc  = prometheus.NewDesc("gpuslice_slice_evictions_total", "How often the elastic slice was moved to host memory, since the enforcer began.", []string{"slice"}, nil)
	waitedDesc     = prometheus.NewDesc("gpuslice_slice_return_wait_seconds_total", "How long processes of the elastic slice waited for its return, since the enforcer began.", []string{"slice"}, nil)
	deviceDescs    = describeAll(perDevice, "slice")
)

type collector struct {
	slices Slices
	log    *slog.Logger
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- slicesDesc
	descs <- infoDesc
	descs <- processesDesc
	descs <- evictionsDesc
	descs <- waitedDesc
	descs <- deviceUsedDesc
	for _, d := range slices.Concat(boundedDescs, deviceDescs) {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	slices, err := c.slices.Slices(ctx)
	if err != nil {
		// Fail the whole scrape: missing figures must not look like zeros.
		c.log.Error("the slices' metrics cannot be collected", "err", err)
		metrics <- prometheus.NewInvalidMetric(slicesDesc, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(slicesDesc, float64(len(slices)))
	used := make(map[string]uint64)
	for _, s := range slices {
		for _, d := range s.Devices {
			used[d.Device] += d.Used + d.Overhead
		}
	}
	for device, bytes := range used {
		gauge(deviceUsedDesc, float64(bytes), device)
	}
	bounds, _ := c.slices.(Bounds)
	var pools []api.Pool
	if all, ok := c.slices.(Pools); ok {
		if pools, err = all.Pools(ctx); err != nil {
			c.log.Error("the pools' metrics cannot be collected", "err", err)
			metrics <- prometheus.NewInvalidMetric(tenantLimitDesc, err)
			return
		}
	}
	collectTenants(slices, pools, bounds, gauge)
	own := listed(slices)
	gauge(unlistedDesc, float64(len(slices)-len(own)))
	for _, s := range own {
		gauge(infoDesc, 1, s.ID, s.Tenant, s.Pools.String(), string(s.Mode), string(s.State), s.Name, s.Pod, s.Namespace, s.Image)
		gauge(processesDesc, float64(s.ProcessCount), s.ID)
		if e := s.Elastic; e != nil {
			metrics <- prometheus.MustNewConstMetric(evictionsDesc, prometheus.CounterValue, float64(e.Evictions), s.ID)
			metrics <- prometheus.MustNewConstMetric(waitedDesc, prometheus.CounterValue, e.Waited.Seconds(), s.ID)
		}
		for _, d := range s.Devices {
			for i, m := range perDevice {
				if m.name == "limit_bytes" && d.Limit == 0 && s.Mode == api.Record {
					continue
				}
				metrics <- prometheus.MustNewConstMetric(deviceDescs[i], m.kind, float64(m.value(d)), s.ID, d.Device)
			}
		}
	}
}
