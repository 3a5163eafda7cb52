// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// counted returns counts with one lease of each end, and an active one of tenant a.
func counted() counts {
	c := newCounts()
	for _, reason := range []string{reasonDropped, reasonExpired, reasonLinger, reasonReleased, "x"} {
		l := &lease{record: record{VRAM: 6, Overhead: 4, Tenant: "b"}, since: time.Now().Add(-time.Hour)}
		c.leaseBegan(l)
		c.leaseEnded(l, causeOfEnd(reason))
	}
	c.takenUp(&lease{record: record{VRAM: 1, Overhead: 1, Tenant: "a"}, since: time.Now().Add(-time.Minute)})
	c.renewed()
	c.failed()
	return c
}

func TestEachMetricOfLeasesIsDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/operate/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	c := counted()
	c.registry.MustRegister(&sessions{
		func() []string { return []string{"lease-1"} },
		func(context.Context, string) (*leasepb.StatsReply, error) { return &leasepb.StatsReply{}, nil },
	})
	var d atomic.Pointer[remoteListener]
	d.Store(&remoteListener{by: map[string]int{"alice": 1}})
	c.registry.MustRegister(&remoteClients{&d})
	if problems, err := testutil.GatherAndLint(c.registry); err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "gpuslice_lease_") {
			continue
		}
		rows++
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
		if !strings.Contains(string(document), row) {
			t.Errorf("docs/operate/metrics.md has no row\n%s", row)
		}
	}
	if n := strings.Count(string(document), "\n| `gpuslice_lease_"); n != rows {
		t.Errorf("docs/operate/metrics.md has %d rows of leases, but there are %d metrics", n, rows)
	}
}

func TestLeasesAreCounted(t *testing.T) {
	c := counted()
	for name, want := range map[string]float64{"acquired": testutil.ToFloat64(c.acquired), "refused": testutil.ToFloat64(c.refused), "renewed": testutil.ToFloat64(c.renewals)} {
		if n := map[string]float64{"acquired": 5, "refused": 1, "renewed": 1}[name]; n != want {
			t.Errorf("%s: %v", name, want)
		}
	}
	for _, cause := range []string{causeDropped, causeExpired, causeLinger, causeFailed, causeOther} {
		if n := testutil.ToFloat64(c.ended.WithLabelValues(cause)); n != 1 {
			t.Errorf("%s: %v", cause, n)
		}
	}
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); len(l) == 1 && l[0].GetName() == "tenant" {
				got[f.GetName()+" "+l[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	between := func(name string, from, to float64) {
		if n, ok := got[name]; !ok || n < from || n > to {
			t.Errorf("%s: %v", name, n)
		}
	}
	between("gpuslice_lease_active a", 1, 1)
	between("gpuslice_lease_active b", 0, 0)
	between("gpuslice_lease_granted_bytes a", 2, 2)
	between("gpuslice_lease_granted_byte_seconds_total a", 120, 240)
	between("gpuslice_lease_granted_byte_seconds_total b", 5*36000, 6*36000)
}

func TestTenantsOfLeasesAreBounded(t *testing.T) {
	c := newCounts()
	var all []*lease
	for i := range maxTenants + 50 {
		l := &lease{record: record{VRAM: 1, Tenant: fmt.Sprint("t", i)}, since: time.Now()}
		c.leaseBegan(l)
		all = append(all, l)
	}
	for _, l := range slices.Backward(all) {
		c.leaseEnded(l, causeDropped)
	}
	if n := testutil.CollectAndCount(c.granted, "gpuslice_lease_active"); n != maxTenants+1 {
		t.Errorf("%d series", n)
	}
}
