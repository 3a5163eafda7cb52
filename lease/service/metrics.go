// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gpuslice/gpuslice/daemon/metrics"
)

const (
	// maxTenants is the maximum of tenants with their own series. The rest is summed under otherTenants.
	maxTenants   = 100
	otherTenants = "other"
)

// counts holds the metrics. It is safe for concurrent use.
type counts struct {
	registry *prometheus.Registry
	acquired prometheus.Counter
	refused  prometheus.Counter
	renewals prometheus.Counter
	ended    *prometheus.CounterVec
	brokers  *prometheus.CounterVec
	granted  *granted
	remote   *prometheus.CounterVec
}

// Causes of a lease's end, as a label.
const (
	causeDropped = "dropped"
	causeExpired = "expired"
	causeLinger  = "linger"
	causeFailed  = "failed"
	causeOther   = "other"
)

// Causes of a broker's unexpected end, as a label; causeOther is another.
const (
	causeFault = "fault"
	causeLoad  = "load"
)

func newCounts() counts {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuslice_lease_" + name, Help: help})
	}
	c := counts{
		registry: prometheus.NewRegistry(),
		acquired: counter("acquired_total", "Leases that were acquired."),
		refused:  counter("refused_total", "Requests for a lease that were refused or failed."),
		renewals: counter("renewed_total", "Renewals of leases."),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_lease_ended_total",
			Help: "Leases that ended, by cause: dropped, expired, linger (no client was connected for that time), failed (it could not continue), or other (its slice was released).",
		}, []string{"cause"}),
		brokers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_lease_broker_ends_total",
			Help: "Brokers that exited unexpectedly and were replaced, by cause: fault (of a kernel), load (a module that took too long), or other.",
		}, []string{"cause"}),
		granted: &granted{seconds: make(map[string]float64), live: make(map[*lease]bool)},
	}
	c.remote = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gpuslice_lease_remote_refused_total",
		Help: "Connections from other machines that were refused, by cause: handshake (no TLS 1.3, or no accepted certificate), user (the certificate names no user of this host), places (too many connections).",
	}, []string{"cause"})
	for _, cause := range []string{refusedHandshake, refusedUser, refusedPlaces} {
		c.remote.WithLabelValues(cause)
	}
	for _, cause := range []string{causeDropped, causeExpired, causeLinger, causeFailed, causeOther} {
		c.ended.WithLabelValues(cause)
	}
	for _, cause := range []string{causeFault, causeLoad, causeOther} {
		c.brokers.WithLabelValues(cause)
	}
	c.registry.MustRegister(c.acquired, c.refused, c.renewals, c.ended, c.brokers, c.granted, c.remote, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return c
}

func (c *counts) leaseBegan(l *lease) {
	c.acquired.Inc()
	c.granted.begin(l)
}

func (c *counts) brokerEnded(cause string) { c.brokers.WithLabelValues(cause).Inc() }

func (c *counts) takenUp(l *lease) { c.granted.begin(l) }

func (c *counts) failed()  { c.refused.Inc() }
func (c *counts) renewed() { c.renewals.Inc() }

func (c *counts) refuseRemote(cause string) { c.remote.WithLabelValues(cause).Inc() }

// remoteClients exports the number of connections from other machines. maxRemote limits its series.
type remoteClients struct {
	listener *atomic.Pointer[remoteListener]
}

var remoteDesc = prometheus.NewDesc("gpuslice_lease_remote_connections", "Connections from other machines, by the user that their certificate names.", []string{"user"}, nil)

// Describe implements prometheus.Collector.
func (r *remoteClients) Describe(to chan<- *prometheus.Desc) { to <- remoteDesc }

// Collect implements prometheus.Collector.
func (r *remoteClients) Collect(to chan<- prometheus.Metric) {
	if d := r.listener.Load(); d != nil {
		for name, n := range d.connections() {
			to <- prometheus.MustNewConstMetric(remoteDesc, prometheus.GaugeValue, float64(n), name)
		}
	}
}

func causeOfEnd(reason string) string {
	switch reason {
	case reasonDropped:
		return causeDropped
	case reasonExpired:
		return causeExpired
	case reasonLinger:
		return causeLinger
	case reasonReleased:
		return causeOther
	}
	return causeFailed
}

func (c *counts) leaseEnded(l *lease, cause string) {
	c.ended.WithLabelValues(cause).Inc()
	c.granted.end(l)
}

// granted sums bytes granted to tenants, times seconds.
type granted struct {
	mu      sync.Mutex         // guards all below
	seconds map[string]float64 // of ended leases, by tenant
	live    map[*lease]bool
}

var (
	grantedDesc = prometheus.NewDesc("gpuslice_lease_granted_byte_seconds_total",
		"VRAM that the tenant's leases were granted, overhead included, times the seconds for which they had it, since the service was started.", []string{"tenant"}, nil)
	leasesDesc = prometheus.NewDesc("gpuslice_lease_active", "Leases of the tenant that are active.", []string{"tenant"}, nil)
	bytesDesc  = prometheus.NewDesc("gpuslice_lease_granted_bytes", "VRAM that the tenant's active leases are granted, overhead included.", []string{"tenant"}, nil)
)

// Describe implements prometheus.Collector.
func (g *granted) Describe(to chan<- *prometheus.Desc) {
	to <- grantedDesc
	to <- leasesDesc
	to <- bytesDesc
}

// Collect implements prometheus.Collector.
func (g *granted) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	count, bytes, seconds := make(map[string]float64), make(map[string]float64), make(map[string]float64)
	for tenant, n := range g.seconds {
		seconds[tenant] = n
	}
	for l := range g.live {
		tenant := g.tenant(l)
		count[tenant]++
		bytes[tenant] += float64(l.VRAM + l.Overhead)
		seconds[tenant] += l.byteSeconds(now)
	}
	for tenant, n := range seconds {
		to <- prometheus.MustNewConstMetric(grantedDesc, prometheus.CounterValue, n, tenant)
		to <- prometheus.MustNewConstMetric(leasesDesc, prometheus.GaugeValue, count[tenant], tenant)
		to <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, bytes[tenant], tenant)
	}
}

func (l *lease) byteSeconds(now time.Time) float64 {
	return float64(l.VRAM+l.Overhead) * now.Sub(l.since).Seconds()
}

// tenant returns the series of a lease. It never changes for a lease. The mutex must be held.
func (g *granted) tenant(l *lease) string {
	if _, known := g.seconds[l.Tenant]; known {
		return l.Tenant
	}
	return otherTenants
}

func (g *granted) begin(l *lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.seconds[l.Tenant]; !known && len(g.seconds) < maxTenants {
		g.seconds[l.Tenant] = 0
	}
	g.live[l] = true
}

func (g *granted) end(l *lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.live[l] {
		delete(g.live, l)
		g.seconds[g.tenant(l)] += l.byteSeconds(time.Now())
	}
}

// ServeMetrics serves /metrics on l until ctx ends.
func (s *Service) ServeMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Page(s.counts.registry))
	return metrics.Serve(ctx, l, mux)
}
