// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
)

// eventCounters counts events. Unlike the figures of a slice, these counters stay when a slice is released.
type eventCounters struct {
	events      *prometheus.CounterVec
	allocations prometheus.Counter
	refusals    prometheus.Counter
	recovered   prometheus.Counter
}

func newEventCounters() eventCounters {
	t := eventCounters{
		events: counters("gpuslice_events_total", "kind", "Events of slices and pools, by kind; one event can stand for several refusals."),
		allocations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpuslice_allocations_total",
			Help: "Allocations that succeeded, of all slices since the start.",
		}),
		refusals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpuslice_refusals_total",
			Help: "Allocations that were refused, of all slices since the start.",
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpuslice_recovered_bytes_total",
			Help: "VRAM that was released because its processes had exited, of all slices since the start.",
		}),
	}
	for _, kind := range api.EventKinds() {
		if kind != api.EventMissed { // not an event of the enforcer
			t.events.WithLabelValues(string(kind)) // Prometheus sees no increase of a counter that starts at 1
		}
	}
	return t
}

// Told counts an event.
func (m *Metrics) Told(e api.Event) {
	m.counted.events.WithLabelValues(string(e.Kind)).Inc()
	switch e.Kind {
	case api.EventRefused:
		m.counted.refusals.Add(float64(e.Count))
	case api.EventFreed:
		m.counted.recovered.Add(float64(e.Bytes))
	}
}

// Allocated adds n allocations.
func (m *Metrics) Allocated(n uint64) { m.counted.allocations.Add(float64(n)) }

// Audit exports the numbers of written and dropped audit entries. It must be called before Handler.
func (m *Metrics) Audit(counts func() (written, dropped uint64)) { m.audit = counts }

// auditCounters returns counters that are 0 without an audit log.
func (m *Metrics) auditCounters() []prometheus.Collector {
	counter := func(name, help string, value func(written, dropped uint64) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 {
			if m.audit == nil {
				return 0
			}
			return float64(value(m.audit()))
		})
	}
	return []prometheus.Collector{
		counter("gpuslice_audit_entries_total", "Entries that were written into the audit log.", func(written, _ uint64) uint64 { return written }),
		counter("gpuslice_audit_dropped_total", "Entries of the audit log that could not be written.", func(_, dropped uint64) uint64 { return dropped }),
	}
}
