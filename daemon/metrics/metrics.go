// SPDX-License-Identifier: Apache-2.0

// Package metrics shows the slices to Prometheus.
//
// It owns the metrics' names, which are a promise to the authors of dashboards: base units, and _total on
// counters alone. It reads slices when it is scraped and keeps nothing of them: a slice that is released is gone from
// the next scrape. It must never make the enforcer slower than one reading of the slices per scrape.
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
	"golang.org/x/time/rate"

	"github.com/gpuslice/gpuslice/api"
)

// Slices is where the figures come from.
type Slices interface {
	Slices(ctx context.Context) ([]api.Slice, error)
}

// scrapeTimeout is how long a scrape waits for the slices; Prometheus itself waits 10 s.
const scrapeTimeout = 5 * time.Second

// What whoever reaches the address may take, all together: nobody tells there who asks. Others wait.
const (
	maxConnections                  = 32
	scrapesPerSecond, scrapesAtOnce = 4, 16
)

// Metrics is what the enforcer counts by itself. Its methods may be called by several goroutines.
type Metrics struct {
	registry  *prometheus.Registry
	registers *prometheus.CounterVec
	register  prometheus.Histogram
	releases  *prometheus.CounterVec
	attaches  *prometheus.CounterVec
	told      told
	host      Host                             // nil: none
	audit     func() (written, dropped uint64) // nil: there is no audit log
	bypasses  *prometheus.CounterVec
	joins     *prometheus.CounterVec
}

// New returns Metrics that show slices.
func New(slices Slices, log *slog.Logger) *Metrics {
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		registers: counters("gpuslice_registers_total", "result", "Slices that were asked for, by result: ok, or the error's code."),
		register: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "gpuslice_register_duration_seconds",
			Help:    "From the request for a slice to the answer: what a container's start waits for.",
			Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .02, .03, .05, .075, .1, .2, .5, 1, 2, 5},
		}),
		releases: counters("gpuslice_releases_total", "cause", "Slices that were released, by cause."),
		attaches: counters("gpuslice_attaches_total", "result", "Processes that asked for a place in a ledger, by result."),
		bypasses: counters("gpuslice_bypass_total", "action",
			"Processes that were found to hold VRAM past the ledger, and pages that were overwritten, by what was done: log, refuse, or kill."),
		joins: counters("gpuslice_session_tokens_total", "result",
			"Sessions' tokens that were shown, by result: ok for a process that joined, wrong_token, limited where too many were wrong, or refused for another reason."),
		told: newTold(),
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
	m.registry.MustRegister(m.told.events, m.told.allocations, m.told.refusals, m.told.recovered,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(m.auditCounters()...)
	return m
}

// counters are one for each value of a label.
func counters(name, label, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

// begin makes the counters be there before anything is counted: one that is seen first when something has happened shows no
// increase.
func (m *Metrics) begin() {
	m.registers.WithLabelValues("ok")
	for _, code := range api.Codes() {
		m.registers.WithLabelValues(string(code))
	}
	for _, result := range []string{"ok", "full", "closed", "error", "stopping", "stranger"} {
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

// Registered counts a request for a slice and how long it took; code is "" if it was given.
func (m *Metrics) Registered(code api.Code, took time.Duration) {
	m.register.Observe(took.Seconds())
	if code == "" {
		code = "ok"
	}
	m.registers.WithLabelValues(string(code)).Inc()
}

// Released counts a release. The cause is one of few words, such as "asked" or "cgroup empty": each makes a series.
func (m *Metrics) Released(cause string) { m.releases.WithLabelValues(cause).Inc() }

// Attached counts a process that asked for a place in a ledger. The result is one of few words, such as "ok".
func (m *Metrics) Attached(result string) { m.attaches.WithLabelValues(result).Inc() }

// Bypassed counts what was found to be held past the ledger, by what is done about it.
func (m *Metrics) Bypassed(action string) { m.bypasses.WithLabelValues(action).Inc() }

// Joined counts a session's token that was shown. The result is one of few words, such as "ok".
func (m *Metrics) Joined(result string) { m.joins.WithLabelValues(result).Inc() }

// Handler answers /metrics; /healthz and /readyz if a host is watched; and nothing else.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Page(m.registry))
	if m.host != nil {
		mux.Handle("GET /healthz", m.probe(func(h api.Health) bool { return h.Live }))
		mux.Handle("GET /readyz", m.probe(func(h api.Health) bool { return h.Ready }))
	}
	return mux
}

// Page shows a registry to Prometheus, at a bounded pace.
func Page(registry *prometheus.Registry) http.Handler {
	pace, next := rate.NewLimiter(scrapesPerSecond, scrapesAtOnce), promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pace.Wait(r.Context()) == nil { // else who asked is gone
			next.ServeHTTP(w, r)
		}
	})
}

// Serve answers on the listener, which it closes, until ctx ends, and then returns nil.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener) error {
	return Serve(ctx, listener, m.Handler())
}

// Serve answers by the handler, on few connections at a time, until ctx ends, and then returns nil. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 10 * time.Second,
		MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	err := server.Serve(netutil.LimitListener(listener, maxConnections))
	if !stop() {
		return nil // it was ctx
	}
	return err
}
