// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the driver's metrics. The enforcer exports the memory of claims.
type Metrics struct {
	prepare   *prometheus.HistogramVec
	unprepare *prometheus.CounterVec
	written   prometheus.Counter
	reached   prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	return &Metrics{
		prepare: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_dra_prepare_seconds", Help: "How long claims took to prepare, by whether they were refused.",
			Buckets: []float64{.001, .002, .005, .01, .05, .2, 1, 5, 30},
		}, []string{"refused"}),
		unprepare: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_dra_unprepared_total", Help: "Claims that were unprepared, by whether that failed.",
		}, []string{"failed"}),
		written: f.NewCounter(prometheus.CounterOpts{Name: "gpuslice_dra_slices_written_total", Help: "Times that the node's ResourceSlices were written."}),
		reached: f.NewGauge(prometheus.GaugeOpts{Name: "gpuslice_dra_enforcer_reached", Help: "1 if gpusliced answers, 0 if its devices are tainted."}),
	}
}

func failedLabel(err error) string {
	if err != nil {
		return "true"
	}
	return "false"
}

func (m *Metrics) prepared(took time.Duration, err error) {
	m.prepare.WithLabelValues(failedLabel(err)).Observe(took.Seconds())
}
func (m *Metrics) unprepared(err error) { m.unprepare.WithLabelValues(failedLabel(err)).Inc() }

// Written counts a write of the node's ResourceSlices.
func (m *Metrics) Written() { m.written.Inc() }

// SetReached records whether the enforcer answers.
func (m *Metrics) SetReached(is bool) {
	m.reached.Set(0)
	if is {
		m.reached.Set(1)
	}
}
