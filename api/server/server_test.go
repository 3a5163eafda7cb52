// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// fakeService records the calls, and answers each with err.
type fakeService struct {
	err   error
	may   error // result of May for the users' socket
	panic bool

	registered api.RegisterRequest
	released   string
	changed    api.ChangeRequest
	generation uint64
	force      bool
	peer       Peer
	joined     string
	token      api.Token
	pid        int
	moved      []string
	who        *api.User
	moving     func()     // called during a move, if not nil
	log        *event.Log // nil: there are no events
	followers  atomic.Int32
}

func (f *fakeService) Info(ctx context.Context) (api.Info, error) {
	if f.panic {
		panic("boom")
	}
	f.peer, _ = PeerOf(ctx)
	return api.Info{Version: "1", PID: 7}, f.err
}

func (f *fakeService) Register(_ context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	f.registered = r
	return api.RegisterReply{Slice: api.Slice{ID: r.ID, Generation: 3}, Dir: "/d", Library: "/l"}, f.err
}

func (f *fakeService) Release(_ context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	f.released, f.generation, f.force = id, generation, force
	return api.Slice{ID: id, State: api.Released}, f.err
}

func (f *fakeService) Change(_ context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	f.changed = r
	return api.Slice{ID: id}, f.err
}

// May returns the field may. Without an error the user has a limit.
func (f *fakeService) May(_ context.Context, id string) (bool, error) { return f.may == nil, f.may }

func (f *fakeService) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	f.joined, f.token, f.pid = id, api.TokenOf(ctx), r.PID
	return api.RegisterReply{Slice: api.Slice{ID: id}}, f.err
}

func (f *fakeService) move(what string) {
	if f.moving != nil {
		f.moving()
	}
	f.moved = append(f.moved, what)
}

func (f *fakeService) Suspend(_ context.Context, id string) (api.Slice, error) {
	f.move("suspend " + id)
	return api.Slice{ID: id, State: api.Suspended}, f.err
}

func (f *fakeService) Resume(_ context.Context, id string) (api.Slice, error) {
	f.move("resume " + id)
	return api.Slice{ID: id, State: api.Active}, f.err
}

func (f *fakeService) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	return f.Change(ctx, id, api.ChangeRequest{TTL: r.TTL})
}

func (f *fakeService) Pools(context.Context) ([]api.Pool, error) { return nil, f.err }
func (f *fakeService) Pool(_ context.Context, name string) (api.Pool, error) {
	return api.Pool{Name: name}, f.err
}
func (f *fakeService) CreatePool(_ context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return api.Pool{Name: name, Quotas: r.Quotas}, f.err
}
func (f *fakeService) SetPool(_ context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return api.Pool{Name: name, Quotas: r.Quotas}, f.err
}
func (f *fakeService) DeletePool(_ context.Context, name string) (api.Pool, error) {
	return api.Pool{Name: name, State: api.Released}, f.err
}

func (f *fakeService) Slices(context.Context) ([]api.Slice, error) { return nil, f.err }
func (f *fakeService) SlicesWithCommands(context.Context) ([]api.Slice, error) {
	return []api.Slice{{ID: "s1", Command: "python"}}, f.err
}
func (f *fakeService) Released(context.Context) ([]api.Slice, error) { return nil, f.err }
func (f *fakeService) Slice(_ context.Context, id string) (api.Slice, error) {
	return api.Slice{ID: id}, f.err
}
func (f *fakeService) History(context.Context) ([]api.Run, error) { return nil, f.err }
func (f *fakeService) Limits(_ context.Context, who *api.User) (api.UserLimits, error) {
	f.who = who
	return api.UserLimits{Devices: []api.DeviceLimit{}}, f.err
}
func (f *fakeService) Devices(context.Context) ([]api.Device, error) { return nil, f.err }
func (f *fakeService) Health(context.Context) (api.Health, error) {
	return api.Health{Live: true, Checks: []api.Check{{Name: "loop", OK: true}}}, f.err
}

func (f *fakeService) Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error) {
	if f.log == nil {
		return nil, f.err
	}
	if !wait {
		f.followers.Add(1)
	} else if err := f.log.Wait(ctx, instance, since); err != nil {
		return nil, err
	}
	return f.log.Since(instance, since, 16), f.err
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func ask(t *testing.T, s Service, method, target, body string) (int, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(s, quiet()).ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	if !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s %s: the answer is not JSON: %q", method, target, w.Body)
	}
	return w.Code, w.Body.Bytes()
}

const goodRequest = `{"id":"c1","pid":7,"quotas":[{"device":"*","bytes":1024}]}`

func TestEachVerbReachesTheService(t *testing.T) {
	f := &fakeService{}
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/v1/info", "", 200, `"version":"1"`},
		{"GET", "/v1/slices", "", 200, `[]`},
		{"GET", "/v1/slices?commands=true", "", 200, `"command":"python"`},
		{"GET", "/v1/slices?commands=true&released=true", "", 200, `[]`},
		{"POST", "/v1/slices", goodRequest, 201, `"generation":3`},
		{"GET", "/v1/slices/c1", "", 200, `"id":"c1"`},
		{"DELETE", "/v1/slices/c2?generation=9&force=true", "", 200, `"released"`},
		{"GET", "/v1/devices", "", 200, `[]`},
		{"GET", "/v1/health", "", 200, `{"live":true,"ready":false,"checks":[{"name":"loop","ok":true,"age":0}]}`},
	} {
		status, body := ask(t, f, c.method, c.target, c.body)
		if status != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.target, status, body)
		}
	}
	if f.registered.ID != "c1" || f.registered.Quotas[0].Bytes != 1024 {
		t.Errorf("registered %+v", f.registered)
	}
	if f.released != "c2" || f.generation != 9 || !f.force {
		t.Errorf("released %s, generation %d, force %v", f.released, f.generation, f.force)
	}
}

func TestABadRequestIsRefusedAsJSON(t *testing.T) {
	large := `{"id":"` + strings.Repeat("x", maxBody) + `"}`
	for _, c := range []struct {
		method, target, body string
		code                 api.Code
		want                 string
	}{
		{"GET", "/", "", api.CodeNotFound, "/"},
		{"GET", "/v2/slices", "", api.CodeNotFound, "/v2/slices"},
		{"GET", "/v1/slices/", "", api.CodeNotFound, "/v1/slices/"},
		{"GET", "/v1/slices/a/b", "", api.CodeNotFound, "a/b"},
		{"GET", "//v1/slices", "", api.CodeNotFound, "//v1"},
		{"GET", "/v1/../v1/slices", "", api.CodeNotFound, ".."},
		{"PUT", "/v1/slices", "", api.CodeMethod, "GET, POST"},
		{"POST", "/v1/info", "", api.CodeMethod, "GET"},
		{"POST", "/v1/slices", "", api.CodeBadRequest, "EOF"},
		{"POST", "/v1/slices", `{"id":`, api.CodeBadRequest, "EOF"},
		{"POST", "/v1/slices", `[]`, api.CodeBadRequest, "the request was given as array: an object is accepted"},
		{"POST", "/v1/slices", `{"quotas":[{"bytes":"4G"}]}`, api.CodeBadRequest, "quotas.bytes was given as string: a whole number from 0 to 18446744073709551615 is accepted"},
		{"POST", "/v1/slices", `{"quotas":[{"percent":-1}]}`, api.CodeBadRequest, "quotas.percent was given as number -1: a whole number from 0 to 4294967295 is accepted"},
		{"POST", "/v1/slices", `{"quotas":"4G"}`, api.CodeBadRequest, "quotas was given as string: an array is accepted"},
		{"POST", "/v1/slices", `{"ttl":"1h"}`, api.CodeBadRequest, "ttl was given as string: a whole number is accepted"},
		{"POST", "/v1/slices", `{"pid":1.5}`, api.CodeBadRequest, "pid was given as number 1.5: a whole number is accepted"},
		{"POST", "/v1/slices", `{"session":"yes"}`, api.CodeBadRequest, "session was given as string: true or false is accepted"},
		{"POST", "/v1/slices", `{"id":7}`, api.CodeBadRequest, "id was given as number: a string is accepted"},
		{"POST", "/v1/slices", `{"id":"c1","quota":[]}`, api.CodeBadRequest, `"quota"`},
		{"POST", "/v1/slices", goodRequest + "{}", api.CodeBadRequest, "more"},
		{"POST", "/v1/slices", goodRequest + "x", api.CodeBadRequest, "more"},
		{"POST", "/v1/slices", `{"id":"c1"}`, api.CodeBadRequest, "pid"},
		{"POST", "/v1/slices", strings.Replace(goodRequest, "1024", "-1", 1), api.CodeBadRequest, "bytes"},
		{"POST", "/v1/slices", strings.Replace(goodRequest, "1024", "1e99", 1), api.CodeBadRequest, "bytes"},
		{"POST", "/v1/slices", large, api.CodeTooLarge, "65536"},
		{"POST", "/v1/slices?dry=1", goodRequest, api.CodeBadRequest, "dry"},
		{"GET", "/v1/slices/.hidden", "", api.CodeBadRequest, ".hidden"},
		{"GET", "/v1/slices/a%2fb", "", api.CodeBadRequest, "a/b"},
		{"DELETE", "/v1/slices/c1?generation=x", "", api.CodeBadRequest, "generation"},
		{"DELETE", "/v1/slices/c1?generation=", "", api.CodeBadRequest, "generation"},
		{"DELETE", "/v1/slices/c1?generation=-1", "", api.CodeBadRequest, "generation"},
		{"DELETE", "/v1/slices/c1?generation=%zz", "", api.CodeBadRequest, "query"},
		{"DELETE", "/v1/slices/c1?generation=1&generation=2", "", api.CodeBadRequest, "twice"},
		{"DELETE", "/v1/slices/c1?generations=1", "", api.CodeBadRequest, "generations"},
		{"DELETE", "/v1/slices/c1?force=maybe", "", api.CodeBadRequest, "force"},
		{"GET", "/v1/events?since=1h", "", api.CodeBadRequest, "since"},
		{"GET", "/v1/events?since=-1", "", api.CodeBadRequest, "since"},
		{"GET", "/v1/events?follow=yes", "", api.CodeBadRequest, "follow"},
	} {
		f := &fakeService{}
		status, body := ask(t, f, c.method, c.target, c.body)
		var e api.Error
		if err := json.Unmarshal(body, &e); err != nil || e.Code != c.code || status != c.code.Status() {
			t.Errorf("%s %s: %d %s", c.method, c.target, status, body)
		}
		if !strings.Contains(e.Message, c.want) || strings.Contains(e.Message, "\n") {
			t.Errorf("%s %s: the message does not say %q: %q", c.method, c.target, c.want, e.Message)
		}
		if f.registered.ID != "" || f.released != "" {
			t.Errorf("%s %s was carried out", c.method, c.target)
		}
	}
}

func TestTheServicesErrorsKeepTheirCodes(t *testing.T) {
	for _, code := range api.Codes() {
		sent := &api.Error{Code: code, Message: "m", Device: "GPU-1", Requested: 3, Limit: 2, Current: 1}
		status, body := ask(t, &fakeService{err: errors.Join(sent)}, "GET", "/v1/info", "")
		var got api.Error
		if err := json.Unmarshal(body, &got); err != nil || got != *sent || status != code.Status() {
			t.Errorf("%s: %d %s", code, status, body)
		}
	}
	status, body := ask(t, &fakeService{err: errors.New("disk full")}, "GET", "/v1/info", "")
	if status != 500 || !strings.Contains(string(body), "disk full") {
		t.Errorf("another error: %d %s", status, body)
	}
	if status, _ := ask(t, &fakeService{panic: true}, "GET", "/v1/info", ""); status != 500 {
		t.Errorf("a panic: %d", status)
	}
}

func FuzzRegister(f *testing.F) {
	f.Add([]byte(goodRequest))
	f.Add([]byte(`{"id":"c1","pid":7,"quotas":[{"device":"0","percent":50}],"mode":"record","ttl":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &fakeService{}
		w := httptest.NewRecorder()
		Handler(s, quiet()).ServeHTTP(w, httptest.NewRequest("POST", "/v1/slices", strings.NewReader(string(body))))
		if w.Code == 201 && s.registered.Validate() != nil {
			t.Errorf("an invalid request came through: %s", body)
		}
		if w.Code != 201 && w.Code != 400 && w.Code != 413 {
			t.Errorf("status %d", w.Code)
		}
	})
}

func start(t *testing.T, s Service, path string) (stop func() error) {
	t.Helper()
	l := must.Get(Listen(path, ""))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(s, quiet()).Serve(ctx, l) }()
	stop = func() error {
		cancel()
		err := <-done
		done <- nil
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "gs"))(t) // t.TempDir is too long for a socket's name
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir + "/s.sock"
}

func httpClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}, Timeout: 20 * time.Second}
}

func TestARequestsUserIsThePeerOfTheSocket(t *testing.T) {
	path, f := socketPath(t), &fakeService{}
	stop := start(t, f, path)
	r, err := httpClient(path).Get("http://gpuslice/v1/info")
	must.Do(t, err)
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	expect.NoError(t, stop(), "stopping")
	start := must.Get(process.StartTime(os.Getpid()))(t)
	if uid := uint32(os.Getuid()); f.peer != (Peer{PID: os.Getpid(), Start: start, UID: uid, GID: uint32(os.Getgid()), counts: uid}) {
		t.Errorf("the peer is %+v", f.peer)
	}
}
