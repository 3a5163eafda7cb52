// SPDX-License-Identifier: Apache-2.0

// Package metrics exports the slices to Prometheus.
//
// It owns the metrics' names, which are stable for the authors of dashboards: base units, and _total on counters only. It reads
// the slices for each scrape and caches nothing: a released slice is absent from the next scrape. It must never cost the enforcer
// more than one reading of the slices per scrape.
package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/pace"
)

// Slices provides the figures of the slices.
type Slices interface {
	Slices(ctx context.Context) ([]api.Slice, error)
}

// scrapeTimeout limits the reading of the slices; Prometheus itself waits 10 s.
const scrapeTimeout = 5 * time.Second

// Limits of all clients together, since a TCP peer's user is unknown. Further clients wait.
const (
	maxConnections                  = 32
	scrapesPerSecond, scrapesAtOnce = 4, 16
)

// Metrics has the counters of the enforcer. It is safe for concurrent use.
type Metrics struct {
	registry  *prometheus.Registry
	registers *prometheus.CounterVec
	register  prometheus.Histogram
	releases  *prometheus.CounterVec
	attaches  *prometheus.CounterVec
	counted   eventCounters
	host      Host                             // may be nil
	audit     func() (written, dropped uint64) // nil without an audit log
	bypasses  *prometheus.CounterVec
	joins     *prometheus.CounterVec
}

// New returns Metrics for slices.
func New(slices Slices, log *slog.Logger) *Metrics {
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		registers: counters("gpuslice_registers_total", "result", "Requests for a slice, by result: ok, or the error's code."),
		register: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "gpuslice_register_duration_seconds",
			Help:    "Time from the request for a slice to the answer, which delays a container's start.",
			Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .02, .03, .05, .075, .1, .2, .5, 1, 2, 5},
		}),
		releases: counters("gpuslice_releases_total", "cause", "Slices that were released, by cause."),
		attaches: counters("gpuslice_attaches_total", "result", "Requests of processes to attach to a ledger, by result."),
		bypasses: counters("gpuslice_bypass_total", "action",
			"Processes found to hold VRAM beyond the ledger, and ledgers found overwritten, by the action: log, refuse, or kill."),
		joins: counters("gpuslice_session_tokens_total", "result",
			"Requests to join a session by its token, by result: ok, wrong_token, limited (too many wrong tokens), or refused for another reason."),
		counted: newEventCounters(),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "gpuslice_build_info",
		Help:        "Always 1; the labels say which gpuslice this is.",
		ConstLabels: prometheus.Labels{"version": api.Version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.registers, m.register, m.releases, m.attaches, m.bypasses, m.joins, build, &collector{slices, log})
	if pools, ok := slices.(Pools); ok {
		m.registry.MustRegister(&poolCollector{pools, log})
	}
	m.begin()
	m.registry.MustRegister(m.counted.events, m.counted.allocations, m.counted.refusals, m.counted.recovered,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(m.auditCounters()...)
	return m
}

func counters(name, label, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

// begin creates the counters with value 0: Prometheus sees no increase of one that starts at 1.
func (m *Metrics) begin() {
	m.registers.WithLabelValues("ok")
	for _, code := range api.Codes() {
		m.registers.WithLabelValues(string(code))
	}
	for _, result := range []string{"ok", "full", "closed", "error", "stopping", "away", "stranger"} {
		m.attaches.WithLabelValues(result)
	}
	for _, action := range []api.Action{api.Log, api.Refuse, api.Kill} {
		m.bypasses.WithLabelValues(string(action))
	}
	for _, cause := range []string{"asked", "ended", "expired", "replaced", "failed"} {
		m.releases.WithLabelValues(cause)
	}
	for _, result := range []string{"ok", "wrong_token", "limited", "refused"} {
		m.joins.WithLabelValues(result)
	}
}

// Registered counts a request for a slice and its duration; code is "" on success.
func (m *Metrics) Registered(code api.Code, took time.Duration) {
	m.register.Observe(took.Seconds())
	if code == "" {
		code = "ok"
	}
	m.registers.WithLabelValues(string(code)).Inc()
}

// Released counts a release. The cause is one of a fixed set, such as "asked" or "cgroup empty", as each makes a series.
func (m *Metrics) Released(cause string) { m.releases.WithLabelValues(cause).Inc() }

// Attached counts a process's attach. The result is one of a fixed set, such as "ok".
func (m *Metrics) Attached(result string) { m.attaches.WithLabelValues(result).Inc() }

// Bypassed counts memory found past the ledger, by the enforcer's action.
func (m *Metrics) Bypassed(action string) { m.bypasses.WithLabelValues(action).Inc() }

// Joined counts a use of a session's token. The result is one of a fixed set, such as "ok".
func (m *Metrics) Joined(result string) { m.joins.WithLabelValues(result).Inc() }

// Handler serves /metrics, and, after Watch, /healthz and /readyz.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Page(m.registry))
	if m.host != nil {
		mux.Handle("GET /healthz", m.probe(func(h api.Health) bool { return h.Live }))
		mux.Handle("GET /readyz", m.probe(func(h api.Health) bool { return h.Ready }))
	}
	return mux
}

// Page serves a registry to Prometheus, at a bounded rate.
func Page(registry *prometheus.Registry) http.Handler {
	scrapes, next := pace.New(scrapesPerSecond, scrapesAtOnce), promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if scrapes.Wait(r.Context()) == nil { // else the client has disconnected
			next.ServeHTTP(w, r)
		}
	})
}

// Serve serves on listener until ctx ends, then closes it and returns nil.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener) error {
	return Serve(ctx, listener, m.Handler())
}

// Serve serves handler on listener, with a few connections at a time, until ctx ends; then it closes the listener and returns
// nil.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 10 * time.Second,
		MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	err := server.Serve(netutil.LimitListener(listener, maxConnections))
	if !stop() {
		return nil // ctx ended
	}
	return err
}
