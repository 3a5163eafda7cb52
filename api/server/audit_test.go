// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// auditor makes requests to a Server on a socket, and returns their audit entries without the fields that are always the same.
type auditor struct {
	path string
	mu   sync.Mutex
	put  []audit.Entry
}

func newAuditor(t *testing.T, s *Server) *auditor {
	t.Helper()
	a := &auditor{path: socketPath(t)}
	l := must.Get(Listen(a.path, ""))(t)
	s.AuditWith(func(e audit.Entry) { a.mu.Lock(); defer a.mu.Unlock(); a.put = append(a.put, e) })
	go func() { _ = s.Serve(t.Context(), l) }()
	return a
}

func (a *auditor) ask(t *testing.T, method, target, body string) audit.Entry {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), method, "http://gpuslice"+target, strings.NewReader(body)))(t)
	r, err := httpClient(a.path).Do(request)
	switch {
	case err == nil:
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET): // the server refused the body before it was complete
		await.That(t, "the refusal is recorded", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.put) > 0
		})
	default:
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.put) == 0 {
		return audit.Entry{}
	}
	e := a.put[0]
	a.put = a.put[1:]
	if e.Kind != audit.KindRequest || e.PID != os.Getpid() || e.UID == nil || *e.UID != uint32(os.Getuid()) || e.Command == "" {
		t.Errorf("%s %s: %+v", method, target, e)
	}
	e.Kind, e.PID, e.UID, e.Command = "", 0, nil, ""
	return e
}

func TestEachChangeIsAuditedWithCallerAndResult(t *testing.T) {
	f := &fakeService{}
	a := newAuditor(t, New(f, quiet()))
	full := &api.Error{Code: api.CodeQuotaExceeded, Message: "no", Device: "GPU-1", Requested: 3, Limit: 2}
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		method, target, body string
		refusal              error
		want                 audit.Entry
	}{
		{"POST", "/v1/slices", goodRequest, nil, audit.Entry{
			Event: api.Event{Slice: "c1"}, Operation: "POST /v1/slices", Result: audit.OK, Quotas: []api.Quota{{Device: "*", Bytes: 1024}}, Mode: api.Enforce}},
		{"POST", "/v1/slices", `{"id":"c1","pid":7,"quotas":[],"mode":"record"}`, nil, audit.Entry{
			Event: api.Event{Slice: "c1"}, Operation: "POST /v1/slices", Result: audit.OK, Quotas: []api.Quota{}, Mode: api.Record}},
		{"POST", "/v1/slices", `{"id":"c1","pid":7,"for":{"uid":7,"remote":"192.0.2.7:4711"},"quotas":[{"device":"*","bytes":1024}]}`, nil, audit.Entry{
			Event: api.Event{Slice: "c1"}, Operation: "POST /v1/slices", Result: audit.OK, Remote: "192.0.2.7:4711", Quotas: []api.Quota{{Device: "*", Bytes: 1024}}, Mode: api.Enforce}},
		{"POST", "/v1/slices", `{"id":"c1","pid":7,"for":{"uid":7,"remote":"somewhere"},"quotas":[]}`, nil, audit.Entry{
			Operation: "POST /v1/slices", Result: audit.Refused, Code: api.CodeBadRequest, Message: `remote "somewhere" is not an address and a port`}},
		{"POST", "/v1/slices", goodRequest, full, audit.Entry{
			Event:     api.Event{Slice: "c1", Device: "GPU-1", Requested: 3, Bytes: 3, Limit: new(uint64(2)), Used: new(uint64(0))},
			Operation: "POST /v1/slices", Result: audit.Refused, Code: api.CodeQuotaExceeded, Message: "no", Quotas: []api.Quota{{Device: "*", Bytes: 1024}}, Mode: api.Enforce}},
		{"POST", "/v1/slices", "{", nil, audit.Entry{
			Operation: "POST /v1/slices", Result: audit.Refused, Code: api.CodeBadRequest, Message: "the request cannot be read: unexpected EOF"}},
		{"DELETE", "/v1/slices/c2?force=true", "", nil, audit.Entry{
			Event: api.Event{Slice: "c2"}, Operation: "DELETE /v1/slices/{id}", Result: audit.OK, Force: true}},
		{"DELETE", "/v1/slices/c2?force=false", "", nil, audit.Entry{
			Event: api.Event{Slice: "c2"}, Operation: "DELETE /v1/slices/{id}", Result: audit.OK}},
		// The end of a container is reported for an expired slice, too: no request was refused.
		{"DELETE", "/v1/slices/c2", "", api.Errorf(api.CodeNotFound, "there is no slice c2"), audit.Entry{
			Event: api.Event{Slice: "c2"}, Operation: "DELETE /v1/slices/{id}", Result: audit.Gone, Code: api.CodeNotFound, Message: "there is no slice c2"}},
		{"DELETE", "/v1/slices/c2", "", errors.Join(api.Errorf(api.CodeNotFound, "you have no session c2"), api.ErrForbidden), audit.Entry{
			Event: api.Event{Slice: "c2"}, Operation: "DELETE /v1/slices/{id}", Result: audit.Refused, Code: api.CodeNotFound, Message: "you have no session c2"}},
		{"DELETE", "/v1/slices/c2", "", api.Errorf(api.CodeForbidden, "it is another's"), audit.Entry{
			Event: api.Event{Slice: "c2"}, Operation: "DELETE /v1/slices/{id}", Result: audit.Refused, Code: api.CodeForbidden, Message: "it is another's"}},
		{"POST", "/v1/slices/c3/renew", `{"ttl":3600000000000}`, api.Errorf(api.CodeNotFound, "there is no slice c3"), audit.Entry{
			Event: api.Event{Slice: "c3", TTL: 3600e9}, Operation: "POST /v1/slices/{id}/renew", Result: audit.Refused, Code: api.CodeNotFound, Message: "there is no slice c3"}},
		{"DELETE", "/v1/slices/" + long, "", nil, audit.Entry{
			Operation: "DELETE /v1/slices/{id}", Result: audit.Refused, Code: api.CodeBadRequest, Message: "slice id has 300 characters: 1 to 255 are accepted"}},
		{"POST", "/v1/slices/c3/renew", `{"ttl":3600000000000}`, nil, audit.Entry{
			Event: api.Event{Slice: "c3", TTL: 3600e9}, Operation: "POST /v1/slices/{id}/renew", Result: audit.OK}},
		{"PATCH", "/v1/slices/c3", `{"quotas":[{"device":"*","percent":5}]}`, nil, audit.Entry{
			Event: api.Event{Slice: "c3"}, Operation: "PATCH /v1/slices/{id}", Result: audit.OK, Quotas: []api.Quota{{Device: "*", Percent: 5}}}},
		// Requests that only read, and unknown ones, are not recorded.
		{"GET", "/v1/slices", "", nil, audit.Entry{}},
		{"PUT", "/v1/slices", "", nil, audit.Entry{}},
		{"POST", "/v2/slices", "", nil, audit.Entry{}},
	} {
		f.err = c.refusal
		if got := a.ask(t, c.method, c.target, c.body); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %s:\ngot  %+v\nwant %+v", c.method, c.target, got, c.want)
		}
	}
}

func TestRequestsOfAnUnknownUIDAreRecordedAsAStrangers(t *testing.T) {
	f := &fakeService{}
	s := NewForUsers(f, quiet())
	var put []audit.Entry
	s.AuditWith(func(e audit.Entry) { put = append(put, e) })
	for method, target := range map[string]string{"POST": "/v1/slices", "DELETE": "/v1/slices/s1", "GET": "/v1/slices/s1"} {
		put = nil
		body := strings.NewReader(goodRequest)
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, Peer{PID: os.Getpid(), UID: unknownUID}), method, target, body)
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || body.Len() != len(goodRequest) || w.Header().Get("Connection") != "close" {
			t.Errorf("%s: status %d, %d bytes of the body not read, %v", method, w.Code, body.Len(), w.Header())
		}
		if method == "GET" {
			continue
		}
		if len(put) != 1 || put[0].Share != audit.ShareStranger || put[0].Result != audit.Refused || put[0].Code != api.CodeForbidden || *put[0].UID != unknownUID || put[0].Operation == "" {
			t.Errorf("%s: %+v", method, put)
		}
	}
}

// A user's session has the same id in the audit record as in ps and in its events.
func TestARequestForAUsersSessionIsRecordedUnderTheIDThatTheSessionHas(t *testing.T) {
	f := &fakeService{}
	a := newAuditor(t, NewForUsers(f, quiet()))
	id := api.UserSessionID(uint32(os.Getuid()), "train")
	for _, name := range []string{"train", id} {
		for _, refusal := range []error{nil, api.Errorf(api.CodeForbidden, "no")} {
			f.err = refusal
			if got := a.ask(t, "POST", "/v1/slices", `{"id":"`+name+`","pid":7,"session":true,"quotas":[{"device":"*","bytes":1}]}`); got.Slice != id || f.registered.ID != id {
				t.Errorf("%s, %v: recorded as %q, registered as %q; want %q", name, refusal, got.Slice, f.registered.ID, id)
			}
		}
	}
	f.err = nil
	expect.Equal(t, a.ask(t, "DELETE", "/v1/slices/"+id, "").Slice, id, "its release is recorded as")
	// With the user's number a name can be too long for an id. The service refuses it, and the id in the record is not made longer.
	long := strings.Repeat("x", 255)
	if got := a.ask(t, "POST", "/v1/slices", `{"id":"`+long+`","pid":7,"session":true,"quotas":[{"device":"*","bytes":1}]}`); got.Slice != long {
		t.Errorf("a long name is recorded as %q", got.Slice)
	}
}
