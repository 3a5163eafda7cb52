// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

type unwell struct {
	all
	check api.Check
}

func (u unwell) Health(context.Context) (api.Health, error) {
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
		m.Watch(unwell{all{two()}, c.check}, quiet())
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
