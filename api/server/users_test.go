// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// askUsers sends one request to the users' handlers, with a token if given.
func askUsers(t *testing.T, s UserService, method, target, body string, token ...string) (int, api.Error) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, target, strings.NewReader(body))
	for _, value := range token {
		r.Header.Add("Authorization", value)
	}
	UserHandler(s, quiet()).ServeHTTP(w, r)
	var e api.Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil && w.Code/100 != 2 {
		t.Errorf("%s %s: the answer is not JSON: %q", method, target, w.Body)
	}
	return w.Code, e
}

func TestUsersSocketServesOnlySessionVerbs(t *testing.T) {
	bodies := map[string]string{
		"POST /v1/slices":            goodRequest,
		"POST /v1/slices/{id}/renew": `{"ttl":3600000000000}`,
		"POST /v1/slices/{id}/join":  `{"pid":7}`,
	}
	for _, r := range routes {
		name := r.method + " " + r.path
		target := strings.NewReplacer("{id}", "s1", "{name}", "p1").Replace(r.path)
		status, e := askUsers(t, &fakeService{}, r.method, target, bodies[name])
		switch theirs := slices.Contains(userRoutes, name); {
		case theirs && status != r.status:
			t.Errorf("%s: status %d: %s", name, status, e.Message)
		case !theirs && (status != 403 || e.Code != api.CodeForbidden || !strings.Contains(e.Message, "the operator's, on the control socket")):
			t.Errorf("%s: status %d: %s", name, status, e.Message)
		}
	}
	for _, name := range userRoutes {
		expect.True(t, slices.ContainsFunc(routes, func(r route) bool { return r.method+" "+r.path == name }), name, "is no route")
	}
}

func TestUserSeesOnlyOwnLimits(t *testing.T) {
	status, e := askUsers(t, &fakeService{}, "GET", "/v1/limits?uid=5002", "")
	if status != 403 || !strings.Contains(e.Message, "no other user's limits") {
		t.Errorf("%d, %s", status, e.Message)
	}
	for query, want := range map[string]*api.User{
		"": nil, "?uid=7": {UID: 7}, "?uid=7&groups=": {UID: 7}, "?uid=7&groups=8,9": {UID: 7, Groups: []uint32{8, 9}},
	} {
		f := &fakeService{}
		w := httptest.NewRecorder()
		Handler(f, quiet()).ServeHTTP(w, httptest.NewRequest("GET", "/v1/limits"+query, nil))
		if w.Code != 200 || !reflect.DeepEqual(f.who, want) {
			t.Errorf("%q: %d, %+v", query, w.Code, f.who)
		}
	}
	for _, query := range []string{"?uid=", "?uid=-1", "?uid=4294967296", "?groups=8", "?uid=7&groups=8,x", "?user=alice"} {
		w := httptest.NewRecorder()
		Handler(&fakeService{}, quiet()).ServeHTTP(w, httptest.NewRequest("GET", "/v1/limits"+query, nil))
		expect.Equal(t, w.Code, 400, query)
	}
}

func TestTokenIsAcceptedOnlyInAHeader(t *testing.T) {
	token := strings.Repeat("ab", 32)
	for name, c := range map[string]struct {
		headers []string
		want    api.Token
	}{
		"shown":        {[]string{"Bearer " + token}, api.Token(token)},
		"none":         {nil, ""},
		"another kind": {[]string{"Basic " + token}, ""},
		"twice":        {[]string{"Bearer " + token, "Bearer " + token}, ""},
		"nothing":      {[]string{"Bearer "}, ""},
	} {
		f := &fakeService{}
		if status, e := askUsers(t, f, "POST", "/v1/slices/s1/join", `{"pid":7}`, c.headers...); status != 200 || f.joined != "s1" || f.pid != 7 || f.token != c.want {
			t.Errorf("%s: %d %s, %q", name, status, e.Message, string(f.token))
		}
	}
	for _, c := range []struct{ target, body string }{
		{"/v1/slices/s1/join?token=" + token, `{"pid":7}`},
		{"/v1/slices/s1/join", `{"pid":7,"token":"` + token + `"}`},
		{"/v1/slices/s1/join", `{"pid":0}`},
		{"/v1/slices/s1/join", `{}`},
		{"/v1/slices/s1/join", ``},
	} {
		f := &fakeService{}
		status, e := askUsers(t, f, "POST", c.target, c.body)
		if status != 400 || f.joined != "" || strings.Contains(e.Message, token) {
			t.Errorf("%s %s: %d %q", c.target, c.body, status, e.Message)
		}
	}
}

func FuzzUsers(f *testing.F) {
	f.Add("POST", "/v1/slices/s1/join", "Bearer "+strings.Repeat("ab", 32), []byte(`{"pid":7}`))
	f.Add("DELETE", "/v1/slices/s1?generation=1&force=true", "Bearer x", []byte{})
	f.Add("GET", "/v1/slices", "", []byte{})
	f.Add("GET", "/v1/../v1/devices", "Basic x", []byte{})
	f.Fuzz(func(t *testing.T, method, target, authorization string, body []byte) {
		r, err := http.NewRequest(method, "http://gpuslice", strings.NewReader(string(body)))
		if err != nil {
			return // no valid request
		}
		// Set directly, to include values that a parser would reject.
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
		r.Header.Set("Authorization", authorization)
		s, w := &fakeService{}, httptest.NewRecorder()
		UserHandler(s, quiet()).ServeHTTP(w, r)
		if w.Code == 500 || w.Code/100 == 2 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %q: %d %q", method, target, w.Code, w.Body)
		}
		if s.joined != "" && api.CheckID(s.joined) != nil || s.released != "" && api.CheckID(s.released) != nil {
			t.Errorf("%s %q reached the service with an id that is none", method, target)
		}
		if s.registered.ID != "" && s.registered.Validate() != nil {
			t.Errorf("an invalid request came through: %s", body)
		}
	})
}

// FuzzRequests does the same for the control socket.
func FuzzRequests(f *testing.F) {
	f.Add("POST", "/v1/slices", []byte(goodRequest))
	f.Add("PATCH", "/v1/slices/s1", []byte(`{"quotas":[{"device":"*","bytes":1}],"ttl":0}`))
	f.Add("POST", "/v1/slices/s1/renew", []byte(`{"ttl":1000000000}`))
	f.Add("DELETE", "/v1/slices/s1?force=1", []byte{})
	f.Add("GET", "/v1/events?since=18446744073709551615", []byte{})
	f.Add("PUT", "/v1/pools/p", []byte(`{"quotas":[{"device":"*","percent":50}]}`))
	f.Fuzz(func(t *testing.T, method, target string, body []byte) {
		r, err := http.NewRequest(method, "http://gpuslice", strings.NewReader(string(body)))
		if err != nil {
			return // no valid request
		}
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
		s, w := &fakeService{}, httptest.NewRecorder()
		Handler(s, quiet()).ServeHTTP(w, r)
		expect.True(t, w.Code != 500, method, target, w.Body)
		if s.registered.ID != "" && s.registered.Validate() != nil {
			t.Errorf("an invalid request came through: %s", body)
		}
	})
}

// The bodies never arrive: waiting for one would end after the client has given up.
func TestAForbiddenUserIsRefusedBeforeTheBodyIsRead(t *testing.T) {
	f := &fakeService{may: api.Errorf(api.CodeForbidden, "not you")}
	server := NewForUsers(f, quiet())
	server.http.ReadTimeout = 2 * await.Patience
	a := newAuditor(t, server)
	for _, asked := range []string{"POST /v1/slices", "POST /v1/slices/s1/renew", "POST /v1/slices/s1/join", "DELETE /v1/slices/s1", "PATCH /v1/slices/s1", "PUT /v1/pools/p"} {
		conn := must.Get(net.Dial("unix", a.path))(t)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(await.Patience))
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: gpuslice\r\nContent-Length: 60000\r\n\r\n{\"id\":", asked)
		line := must.Get(bufio.NewReader(conn).ReadString('\n'))(t)
		expect.Contains(t, line, " 403 ", asked)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.put {
		if e.Share != audit.ShareStranger || e.Result != audit.Refused || e.Code != api.CodeForbidden || e.UID == nil {
			t.Errorf("%+v", e)
		}
	}
}

func TestARejectedRequestIsRecordedInFewBytes(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("{},", 20000), ",")
	for _, c := range []struct{ method, target, body string }{
		{"POST", "/v1/slices", `{"id":"s1","pid":7,"quotas":[` + many + `]}`},
		{"POST", "/v1/slices", `{"id":"s1","pid":7,"tenant":"` + strings.Repeat("x", 60000) + `"}`},
		{"PATCH", "/v1/slices/s1", `{"quotas":[` + many + `]}`},
		{"PUT", "/v1/pools/p", `{"quotas":[` + many + `]}`},
	} {
		for what, s := range map[string]*Server{"control": New(&fakeService{}, quiet()), "users": NewForUsers(&fakeService{}, quiet())} {
			e := newAuditor(t, s).ask(t, c.method, c.target, c.body)
			if text, err := json.Marshal(e); err != nil || len(text) > 1000 || e.Result != audit.Refused {
				t.Errorf("%s %s, %s: %d bytes, %v: %.300s", c.method, c.target, what, len(text), err, text)
			}
		}
	}
}
