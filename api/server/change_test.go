// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// deadlines records those that a handler sets.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error  { d.read = append(d.read, at); return nil }
func (d *deadlines) SetWriteDeadline(at time.Time) error { d.write = append(d.write, at); return nil }

func TestAMoveIsAnsweredHoweverLongItTakes(t *testing.T) {
	f := &fakeService{}
	handler := Handler(f, slog.New(slog.DiscardHandler))
	for _, row := range []struct {
		path, want string
		status     int
	}{
		{"/v1/slices/c1/suspend", "suspend c1", 200},
		{"/v1/slices/c1/resume", "resume c1", 200},
		{"/v1/slices/.c1/resume", "", 400},
		{"/v1/slices/c1/suspend?force=true", "", 400},
	} {
		f.moved = nil
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		noDeadlines := []time.Time{{}}
		f.moving = func() {
			if !slices.Equal(w.read, noDeadlines) || !slices.Equal(w.write, noDeadlines) {
				t.Errorf("%s: during the move its deadlines are %v and %v", row.path, w.read, w.write)
			}
		}
		handler.ServeHTTP(w, httptest.NewRequest("POST", row.path, nil))
		if got := strings.Join(f.moved, ", "); w.Code != row.status || got != row.want {
			t.Errorf("%s: %d, requested: %q", row.path, w.Code, got)
		}
		if row.want != "" && (len(w.write) != 2 || w.write[1].IsZero()) {
			t.Errorf("%s: the answer has no deadline: %v", row.path, w.write)
		}
	}
}

func TestChangeRequestRoundTrips(t *testing.T) {
	f := &fakeService{}
	s := httptest.NewServer(Handler(f, slog.New(slog.DiscardHandler)))
	defer s.Close()
	for _, row := range []struct {
		method, path, body string
		status             int
		want               func(api.ChangeRequest) bool
	}{
		{"PATCH", "/v1/slices/c1", `{"quotas":[{"device":"0","percent":30}]}`, 200, func(r api.ChangeRequest) bool {
			return len(r.Quotas) == 1 && r.Quotas[0] == api.Quota{Device: "0", Percent: 30} && r.TTL == nil
		}},
		{"PATCH", "/v1/slices/c1", `{"ttl":0}`, 200, func(r api.ChangeRequest) bool { return r.Quotas == nil && r.TTL != nil && *r.TTL == 0 }},
		{"POST", "/v1/slices/c1/renew", `{"ttl":60000000000}`, 200, func(r api.ChangeRequest) bool { return *r.TTL == time.Minute }},
		{"PATCH", "/v1/slices/c1", `{}`, 400, nil},
		{"PATCH", "/v1/slices/c1", `{"quota":[]}`, 400, nil},
		{"PATCH", "/v1/slices/.c1", `{"ttl":0}`, 400, nil},
		{"POST", "/v1/slices/c1/renew", `{}`, 400, nil},
		{"POST", "/v1/slices/c1/renew", `{"ttl":1}`, 400, nil},
		{"POST", "/v1/slices/c1/renew?force=true", `{"ttl":0}`, 400, nil},
		{"POST", "/v1/slices/.c1/renew", `{"ttl":0}`, 400, nil},
		{"PATCH", "/v1/slices/c1/renew", `{"ttl":0}`, 405, nil},
		{"PATCH", "/v1/slices/c1", `{"ttl":` + strings.Repeat(" ", maxBody) + `0}`, 413, nil},
	} {
		f.changed = api.ChangeRequest{}
		request := must.Get(http.NewRequest(row.method, s.URL+row.path, strings.NewReader(row.body)))(t)
		answer, err := s.Client().Do(request)
		must.Do(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		what := row.method + " " + row.path + " " + row.body[:min(40, len(row.body))]
		if answer.StatusCode != row.status || row.want != nil && !row.want(f.changed) {
			t.Errorf("%s: %d, %s; requested: %+v", what, answer.StatusCode, text, f.changed)
		}
		if row.want == nil && (f.changed.TTL != nil || f.changed.Quotas != nil) {
			t.Errorf("%s was carried out", what)
		}
	}
}
