// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/doctable"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

var update = flag.Bool("update", false, "write the table of docs/operate/metrics.md")

const document = "../../docs/operate/metrics.md"

// all is a host on which each metric has a value.
type all struct{ *fixed }

func (all) GivenDevices(context.Context) ([]api.Device, error) {
	free := uint64(3)
	return []api.Device{{UUID: "GPU-1", Name: "Simulated", Total: 10, Quotas: 7, Free: &free, Slices: 2}}, nil
}

func (all) Health(context.Context) (api.Health, error) {
	return api.Health{Live: true, Checks: []api.Check{
		{Name: "loop", Age: time.Second, OK: true, For: api.ForLive},
		{Name: "store", Age: 2 * time.Second, Failures: 4, OK: true, For: api.ForLive},
		{Name: "socket", For: api.ForReady},
		{Name: "truth", Device: "GPU-1", Age: 3 * time.Second, Failures: 5},
	}}, nil
}

func (all) Lag() time.Duration { return time.Millisecond }

func (all) HostMemory() (uint64, bool) { return 6, true }

func (all) TenantBounds(string) map[string]uint64 { return map[string]uint64{"GPU-1": 5} }

func (all) Pools(context.Context) ([]api.Pool, error) {
	return []api.Pool{{Name: "llm", Devices: []api.PoolUse{{Device: "GPU-1", Limit: 9, Used: 1}}}}, nil
}

func full() *Metrics {
	m := counted(all{two()})
	m.Watch(all{two()}, quiet())
	m.Audit(func() (uint64, uint64) { return 11, 12 })
	m.Bypassed("log")
	m.Joined("ok")
	m.Told(api.Event{Kind: api.EventRefused, Count: 3})
	m.Told(api.Event{Kind: api.EventFreed, Bytes: 8})
	return m
}

// described returns all names that can be exported.
func described(t *testing.T, m *Metrics) []string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descs)
		close(descs)
	}()
	quoted := regexp.MustCompile(`fqName: "([^"]+)"`)
	var names []string
	for d := range descs {
		names = append(names, quoted.FindStringSubmatch(d.String())[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func gathered(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	families := must.Get(m.registry.Gather())(t)
	found := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		found[f.GetName()] = f
	}
	return found
}

func labels(f *dto.MetricFamily) []string {
	var names []string
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			names = append(names, l.GetName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestEachMetricIsDocumentedAndNothingElseIs(t *testing.T) {
	m := full()
	found := gathered(t, m)
	var table strings.Builder
	table.WriteString("| metric | type | labels | what it says |\n|---|---|---|---|\n")
	for _, name := range described(t, m) {
		f := found[name]
		if f == nil {
			expect.True(t, !strings.HasPrefix(name, "gpuslice_"), name, "has no value on the host of this test: add what it shows")
			continue // of a process on another system
		}
		help := strings.ReplaceAll(f.GetHelp(), "|", "\\|")
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()), strings.Join(labels(f), ", "), help)
	}
	written := must.Get(doctable.Read(document))(t)
	if written == table.String() {
		return
	}
	if *update {
		must.Do(t, doctable.Write(document, table.String()))
		return
	}
	t.Errorf("%s has\n%s\nand the metrics are\n%s\n`go test ./daemon/metrics -update` writes it", document, written, table.String())
}

// mayBeLabels are the labels with few values, the bounded ids of slices and pools, and those that describe a slice in one series
// each.
var mayBeLabels = []string{"image", "namespace", "pod", "label", "slice", "pool", "tenant", "device", "index", "name", "kind", "result", "cause", "action", "mode", "state", "version", "go_version"}

func TestEachNameUnitAndHelpFollowsTheRules(t *testing.T) {
	m := full()
	for _, p := range must.Get(testutil.GatherAndLint(m.registry))(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for name, f := range gathered(t, m) {
		counter := f.GetType() == dto.MetricType_COUNTER
		if counter != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, f.GetType())
		}
		for _, unit := range []string{"bytes", "seconds"} {
			bare := strings.TrimSuffix(name, "_total")
			if strings.Contains(name, unit) && !strings.HasSuffix(bare, "_"+unit) {
				t.Errorf("%s has its unit in the middle", name)
			}
		}
		if !strings.HasPrefix(name, "gpuslice_") {
			expect.True(t, strings.HasPrefix(name, "process_"), name, "is not ours")
			continue
		}
		help := f.GetHelp()
		expect.True(t, regexp.MustCompile(`^[A-Z0-9][^\n]*\.$`).MatchString(help), name, "the help is no sentence", help)
		if strings.Contains(name, "memory") || strings.Contains(name, "vram") {
			t.Errorf("%s says twice that it is about memory", name)
		}
		for _, l := range labels(f) {
			expect.True(t, slices.Contains(mayBeLabels, l), name, "has the label", l, "are its values few?")
		}
	}
}

func TestEventsOfReleasedSlicesStayCounted(t *testing.T) {
	m := full()
	m.Told(api.Event{Kind: api.EventRefused, Count: 4})
	m.Allocated(9)
	_, text := scrape(t, m)
	for _, line := range []string{
		"gpuslice_allocations_total 9", "gpuslice_refusals_total 7", "gpuslice_recovered_bytes_total 8",
		`gpuslice_events_total{kind="refused"} 2`, `gpuslice_events_total{kind="registered"} 0`,
		"gpuslice_audit_entries_total 11", "gpuslice_audit_dropped_total 12",
		"gpuslice_live 1", "gpuslice_ready 0", "gpuslice_loop_age_seconds 1", "gpuslice_loop_lag_seconds 0.001", "gpuslice_host_cgroup_bytes 6",
		"gpuslice_store_wait_seconds 2", "gpuslice_store_failures_total 4",
		`gpuslice_truth_age_seconds{device="GPU-1"} 3`, `gpuslice_truth_failures_total{device="GPU-1"} 5`,
		`gpuslice_device_info{device="GPU-1",index="0",name="Simulated"} 1`,
		`gpuslice_device_total_bytes{device="GPU-1"} 10`, `gpuslice_device_given_bytes{device="GPU-1"} 7`,
		`gpuslice_device_free_bytes{device="GPU-1"} 3`, `gpuslice_device_slices{device="GPU-1"} 2`,
		`gpuslice_device_used_bytes{device="GPU-1"} 1.073742329e+09`,
	} {
		expect.Contains(t, text, "\n"+line+"\n")
	}
}
