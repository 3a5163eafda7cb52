// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type fixed struct {
	slices []api.Slice
	err    error
}

func (f *fixed) Slices(context.Context) ([]api.Slice, error) { return f.slices, f.err }

func two() *fixed {
	return &fixed{slices: []api.Slice{
		{ID: "c1", Names: api.Names{Name: "train", Pod: "train-0", Namespace: "team", Image: "cuda:13"}, State: api.Active, Mode: api.Enforce, Tenant: "physics", ProcessCount: 2, Devices: []api.DeviceUse{
			{Device: "GPU-1", Limit: 4 << 30, Used: 1 << 30, Overhead: 500, Peak: 2 << 30, Allocations: 10, Refusals: 3, Recovered: 77},
			{Device: "GPU-2", Limit: 1 << 30},
		}},
		{ID: "c2", State: api.Active, Mode: api.Record, Elastic: &api.Elastic{Evictions: 3, Waited: 1500 * time.Millisecond}, Devices: []api.DeviceUse{{Device: "GPU-1", Used: 5}}},
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func counted(s Slices) *Metrics {
	m := New(s, quiet())
	m.Registered("", 4*time.Millisecond)
	m.Registered(api.CodeQuotaExceeded, time.Millisecond/4)
	m.Released("asked")
	m.Attached("ok")
	return m
}

func scrape(t *testing.T, m *Metrics) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Code, w.Body.String()
}

func TestTheNamesFollowPrometheusRules(t *testing.T) {
	for _, p := range must.Get(testutil.GatherAndLint(counted(two()).registry))(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsOfTheDashboardExist(t *testing.T) {
	status, text := scrape(t, counted(two()))
	must.Equal(t, status, 200, text)
	for _, line := range []string{
		`gpuslice_slices 2`,
		`gpuslice_slice_limit_bytes{device="GPU-1",slice="c1"} 4.294967296e+09`,
		`gpuslice_slice_used_bytes{device="GPU-1",slice="c1"} 1.073741824e+09`,
		`gpuslice_slice_overhead_bytes{device="GPU-1",slice="c1"} 500`,
		`gpuslice_slice_peak_bytes{device="GPU-1",slice="c1"} 2.147483648e+09`,
		`gpuslice_slice_allocations_total{device="GPU-1",slice="c1"} 10`,
		`gpuslice_slice_refusals_total{device="GPU-1",slice="c1"} 3`,
		`gpuslice_slice_recovered_bytes_total{device="GPU-1",slice="c1"} 77`,
		`gpuslice_slice_limit_bytes{device="GPU-2",slice="c1"} 1.073741824e+09`,
		`gpuslice_slice_used_bytes{device="GPU-1",slice="c2"} 5`,
		`gpuslice_slice_processes{slice="c1"} 2`,
		`gpuslice_slice_evictions_total{slice="c2"} 3`,
		`gpuslice_slice_return_wait_seconds_total{slice="c2"} 1.5`,
		`gpuslice_slice_info{image="cuda:13",mode="enforce",name="train",namespace="team",pod="train-0",pool="",slice="c1",state="active",tenant="physics"} 1`,
		`gpuslice_registers_total{result="ok"} 1`,
		`gpuslice_registers_total{result="quota_exceeded"} 1`,
		`gpuslice_register_duration_seconds_bucket{le="0.0005"} 1`,
		`gpuslice_register_duration_seconds_bucket{le="0.005"} 2`,
		`gpuslice_releases_total{cause="asked"} 1`,
		`gpuslice_attaches_total{result="ok"} 1`,
		// Counters exist before the first event, which otherwise would show no increase.
		`gpuslice_session_tokens_total{result="ok"} 0`, `gpuslice_session_tokens_total{result="wrong_token"} 0`,
		`gpuslice_session_tokens_total{result="limited"} 0`, `gpuslice_session_tokens_total{result="refused"} 0`,
		`gpuslice_releases_total{cause="expired"} 0`, `gpuslice_releases_total{cause="ended"} 0`,
		`gpuslice_releases_total{cause="replaced"} 0`, `gpuslice_releases_total{cause="failed"} 0`,
		`gpuslice_attaches_total{result="stranger"} 0`, `gpuslice_bypass_total{action="kill"} 0`, `gpuslice_registers_total{result="busy"} 0`,
		`gpuslice_build_info{go_version="`,
	} {
		expect.Contains(t, text, "\n"+line)
	}
	expect.True(t, !strings.Contains(text, `gpuslice_slice_limit_bytes{device="GPU-1",slice="c2"}`), "a slice that nothing is refused to has a limit")
}

func TestAReleasedSliceIsGoneFromTheNextScrape(t *testing.T) {
	s := two()
	m := New(s, quiet())
	s.slices = nil
	if _, text := scrape(t, m); strings.Contains(text, "c1") || !strings.Contains(text, "gpuslice_slices 0") {
		t.Error(text)
	}
}

func TestFiguresThatAreMissingDoNotLookLikeZero(t *testing.T) {
	status, text := scrape(t, New(&fixed{err: errors.New("locked")}, quiet()))
	if status != http.StatusInternalServerError || !strings.Contains(text, "locked") {
		t.Errorf("%d %s", status, text)
	}
}

func TestOnlyMetricsAreServedAndOnlyUntilTheEnd(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- New(two(), quiet()).Serve(ctx, l) }()
	get := func(path string) int {
		for range 200 {
			r, err := http.Get("http://" + address + path)
			if err == nil {
				r.Body.Close()
				return r.StatusCode
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatal("nobody answers")
		return 0
	}
	expect.Equal(t, get("/metrics"), 200, "/metrics")
	expect.Equal(t, get("/debug/pprof/"), 404, "/debug/pprof/")
	cancel()
	expect.NoError(t, <-done)
}

type pooled struct {
	fixed
	pools []api.Pool
	fails error
}

func (p *pooled) Pools(context.Context) ([]api.Pool, error) { return p.pools, p.fails }

func TestPoolsAreShown(t *testing.T) {
	p := &pooled{pools: []api.Pool{{
		Name: "llm", State: api.Damaged, Members: []string{"a", "b"}, ProcessCount: 5,
		Devices: []api.PoolUse{{Device: "GPU-1", Limit: 4 << 30, Used: 1 << 30, Overhead: 500, Peak: 2 << 30, Refusals: 3, Recovered: 77}},
	}}}
	m := New(p, quiet())
	status, text := scrape(t, m)
	must.Equal(t, status, 200, text)
	for _, line := range []string{
		`gpuslice_pools 1`,
		`gpuslice_pool_info{label="",pool="llm",state="damaged",tenant=""} 1`,
		`gpuslice_pool_members{pool="llm"} 2`,
		`gpuslice_pool_processes{pool="llm"} 5`,
		`gpuslice_pool_limit_bytes{device="GPU-1",pool="llm"} 4.294967296e+09`,
		`gpuslice_pool_used_bytes{device="GPU-1",pool="llm"} 1.073741824e+09`,
		`gpuslice_pool_overhead_bytes{device="GPU-1",pool="llm"} 500`,
		`gpuslice_pool_peak_bytes{device="GPU-1",pool="llm"} 2.147483648e+09`,
		`gpuslice_pool_refusals_total{device="GPU-1",pool="llm"} 3`,
		`gpuslice_pool_recovered_bytes_total{device="GPU-1",pool="llm"} 77`,
	} {
		expect.Contains(t, text, "\n"+line)
	}
	p.fails = errors.New("locked")
	if status, text := scrape(t, m); status != http.StatusInternalServerError || !strings.Contains(text, "locked") {
		t.Errorf("%d %s", status, text)
	}
}

type unhealthy struct {
	all
	check api.Check
}

func (u unhealthy) Health(context.Context) (api.Health, error) {
	h := api.Health{Checks: []api.Check{u.check}}
	h.Conclude()
	return h, nil
}

func TestProbesSayWhetherTheEnforcerLivesAndWhetherItIsReady(t *testing.T) {
	for _, c := range []struct {
		check       api.Check
		live, ready int
	}{
		{api.Check{Name: "loop", For: api.ForLive, OK: true}, 200, 200},
		{api.Check{Name: "truth"}, 200, 200},
		{api.Check{Name: "socket", For: api.ForReady}, 200, 503},
		{api.Check{Name: "loop", For: api.ForLive}, 503, 503},
	} {
		m := New(two(), quiet())
		m.Watch(unhealthy{all{two()}, c.check}, quiet())
		handler := m.Handler()
		for path, want := range map[string]int{"/healthz": c.live, "/readyz": c.ready} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			var h api.Health
			if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil || len(h.Checks) != 1 || h.Checks[0] != c.check {
				t.Errorf("%s: %q, %v", path, w.Body, err)
			}
			expect.Equal(t, w.Code, want, path, c.check)
		}
	}
}
