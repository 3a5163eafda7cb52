// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
)

// Host provides the figures of the devices and of the enforcer.
type Host interface {
	GivenDevices(ctx context.Context) ([]api.Device, error) // does not block
	Health(ctx context.Context) (api.Health, error)         // does not block
	Lag() time.Duration                                     // delay of the end of the last regular check of all slices
	HostMemory() (bytes uint64, known bool)                 // charged to the configured cgroup; does not block
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gpuslice_"+name, help, labels, nil)
}

var (
	deviceInfoDesc   = describe("device_info", "Always 1; the labels say which device it is.", "device", "index", "name")
	deviceTotalDesc  = describe("device_total_bytes", "Memory of the device.", "device")
	deviceGivenDesc  = describe("device_given_bytes", "Memory of the device that is granted: quotas, and what released slices still hold.", "device")
	deviceFreeDesc   = describe("device_free_bytes", "Memory of the device that may still be granted; absent without driver truth.", "device")
	deviceSlicesDesc = describe("device_slices", "Slices with a quota on the device.", "device")

	liveDesc          = describe("live", "1 if the enforcer makes progress, 0 if it hangs.")
	readyDesc         = describe("ready", "1 if the enforcer can register slices now.")
	loopAgeDesc       = describe("loop_age_seconds", "Time since the last regular check of all slices ended.")
	loopLagDesc       = describe("loop_lag_seconds", "How long after its time the last regular check of all slices ended.")
	storeWaitDesc     = describe("store_wait_seconds", "How long the oldest change has waited for the disk; 0 if none waits.")
	storeFailuresDesc = describe("store_failures_total", "Changes, or groups of them, that could not be stored.")
	truthAgeDesc      = describe("truth_age_seconds", "Time since the driver last listed the device's processes and their memory, or reported that the amount in use is unchanged.", "device")
	truthFailuresDesc = describe("truth_failures_total", "Queries of the device's processes and their memory that failed.", "device")

	hostMemoryDesc = describe("host_cgroup_bytes", "Memory that is charged to host_cgroup; absent without that.")

	hostDescs = []*prometheus.Desc{
		deviceInfoDesc, deviceTotalDesc, deviceGivenDesc, deviceFreeDesc, deviceSlicesDesc,
		liveDesc, readyDesc, loopAgeDesc, loopLagDesc, storeWaitDesc, storeFailuresDesc, truthAgeDesc, truthFailuresDesc,
		hostMemoryDesc,
	}
)

type host struct {
	Host
	log *slog.Logger
}

// Describe implements prometheus.Collector.
func (h *host) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range hostDescs {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (h *host) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { put(d, prometheus.GaugeValue, v, labels...) }
	health, err := h.Health(ctx)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(liveDesc, err)
		return
	}
	gauge(liveDesc, one(health.Live))
	gauge(readyDesc, one(health.Ready))
	gauge(loopLagDesc, h.Lag().Seconds())
	if bytes, known := h.HostMemory(); known {
		gauge(hostMemoryDesc, float64(bytes))
	}
	for _, c := range health.Checks {
		switch c.Name {
		case "loop":
			gauge(loopAgeDesc, c.Age.Seconds())
		case "store":
			gauge(storeWaitDesc, c.Age.Seconds())
			put(storeFailuresDesc, prometheus.CounterValue, float64(c.Failures))
		case "truth":
			gauge(truthAgeDesc, c.Age.Seconds(), c.Device)
			put(truthFailuresDesc, prometheus.CounterValue, float64(c.Failures), c.Device)
		}
	}
	devices, err := h.GivenDevices(ctx)
	if err != nil {
		h.log.Error("the devices' metrics cannot be collected", "err", err)
		metrics <- prometheus.NewInvalidMetric(deviceTotalDesc, err)
		return
	}
	for _, d := range devices {
		gauge(deviceInfoDesc, 1, d.UUID, strconv.Itoa(d.Index), d.Name)
		gauge(deviceTotalDesc, float64(d.Total), d.UUID)
		gauge(deviceGivenDesc, float64(d.Quotas), d.UUID)
		gauge(deviceSlicesDesc, float64(d.Slices), d.UUID)
		if d.Free != nil {
			gauge(deviceFreeDesc, float64(*d.Free), d.UUID)
		}
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Watch adds metrics of a host's devices and the enforcer's health, and serves the health on /healthz and /readyz. It must be
// called before Handler.
func (m *Metrics) Watch(h Host, log *slog.Logger) {
	m.host = h
	m.registry.MustRegister(&host{h, log})
}

// probe answers 200 if is returns true, else 503, with the body of GET /v1/health.
func (m *Metrics) probe(is func(api.Health) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		health, err := m.host.Health(r.Context())
		w.Header().Set("Content-Type", "application/json")
		if err != nil || !is(health) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(health) // fails if the client has disconnected
	}
}
