// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

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
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	p.fails = errors.New("locked")
	if status, text := scrape(t, m); status != http.StatusInternalServerError || !strings.Contains(text, "locked") {
		t.Errorf("%d %s", status, text)
	}
}
