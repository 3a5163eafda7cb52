// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/enforcer/advice"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type service struct {
	slice   api.Slice
	pool    api.Pool
	request api.RegisterRequest
	changed api.ChangeRequest
	err     error
	args    [2]any
	token   api.Token
	joined  int
	moved   []string
	log     *event.Log
}

func (s *service) Info(context.Context) (api.Info, error) {
	return api.Info{Version: "1", Truth: "nvml"}, s.err
}
func (s *service) Register(_ context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	s.request = r
	return api.RegisterReply{Slice: s.slice, Dir: "/d", Library: "/l"}, s.err
}
func (s *service) Release(_ context.Context, _ string, generation uint64, force bool) (api.Slice, error) {
	s.args = [2]any{generation, force}
	return s.slice, s.err
}
func (s *service) Change(_ context.Context, _ string, r api.ChangeRequest) (api.Slice, error) {
	s.changed = r
	return s.slice, s.err
}
func (s *service) Suspend(_ context.Context, id string) (api.Slice, error) {
	s.moved = append(s.moved, "suspend "+id)
	return s.slice, s.err
}

func (s *service) Resume(_ context.Context, id string) (api.Slice, error) {
	s.moved = append(s.moved, "resume "+id)
	return s.slice, s.err
}

func (s *service) Renew(_ context.Context, _ string, r api.RenewRequest) (api.Slice, error) {
	s.changed = api.ChangeRequest{TTL: r.TTL}
	return s.slice, s.err
}
func (s *service) Join(ctx context.Context, _ string, r api.JoinRequest) (api.RegisterReply, error) {
	s.token, s.joined = api.TokenOf(ctx), r.PID
	return api.RegisterReply{Slice: s.slice}, s.err
}
func (s *service) Slices(context.Context) ([]api.Slice, error) { return []api.Slice{s.slice}, s.err }
func (s *service) SlicesWithCommands(context.Context) ([]api.Slice, error) {
	one := s.slice
	one.Command = "python"
	return []api.Slice{one}, s.err
}
func (s *service) Released(context.Context) ([]api.Slice, error)    { return []api.Slice{s.slice}, s.err }
func (s *service) Slice(context.Context, string) (api.Slice, error) { return s.slice, s.err }
func (s *service) Pools(context.Context) ([]api.Pool, error)        { return []api.Pool{s.pool}, s.err }
func (s *service) Pool(context.Context, string) (api.Pool, error)   { return s.pool, s.err }
func (s *service) CreatePool(_ context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	s.args = [2]any{"create " + name, r.Quotas}
	return s.pool, s.err
}
func (s *service) SetPool(_ context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	s.args = [2]any{"set " + name, r.Quotas}
	return s.pool, s.err
}
func (s *service) DeletePool(_ context.Context, name string) (api.Pool, error) {
	s.args = [2]any{"delete " + name, nil}
	return s.pool, s.err
}
func (s *service) Health(context.Context) (api.Health, error) {
	return api.Health{Live: true, Checks: []api.Check{{Name: "socket", For: api.ForReady, Age: 3, Message: "m"}}}, s.err
}
func (s *service) Limits(_ context.Context, who *api.User) (api.UserLimits, error) {
	if who == nil {
		return api.UserLimits{UID: 7}, s.err
	}
	return api.UserLimits{UID: who.UID, Devices: []api.DeviceLimit{{Index: len(who.Groups), Left: 1 << 40}}}, s.err
}
func (s *service) History(context.Context) ([]api.Run, error) {
	return []api.Run{{Slice: "c1", Refusal: &api.Refusal{Device: "GPU-1"}}}, s.err
}
func (s *service) Devices(context.Context) ([]api.Device, error) {
	return []api.Device{{UUID: "GPU-1", Total: 1 << 40}}, s.err
}

func (s *service) Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error) {
	if wait {
		if err := s.log.Wait(ctx, instance, since); err != nil {
			return nil, err
		}
	}
	return s.log.Since(instance, since, 16), s.err
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "gs"))(t) // t.TempDir is too long for a socket's name
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir + "/s.sock"
}

func enforcer(t *testing.T, s server.Service) *Client {
	t.Helper()
	path := socketPath(t)
	l := must.Get(server.Listen(path, ""))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.New(s, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		expect.NoError(t, <-done)
	})
	return New(path)
}

func TestAnswersRoundTrip(t *testing.T) {
	driver := uint64(1 << 63)
	s := &service{slice: api.Slice{
		ID: "c1", Generation: 1<<64 - 1, State: api.Active, Mode: api.Record, PID: 7, Created: time.Now().UTC().Round(0), TTL: time.Hour,
		Devices:   []api.DeviceUse{{Device: "GPU-1", Index: -1, Used: 1 << 62}},
		Processes: []api.Process{{PID: 8, Attached: true, Devices: []api.ProcessUse{{Device: "GPU-1", Driver: &driver}}}}, ProcessCount: 1,
	}}
	c, ctx := enforcer(t, s), context.Background()
	equal := func(what string, got, want any, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
		}
	}
	info, err := c.Info(ctx)
	equal("info", info, api.Info{Version: "1", Truth: "nvml"}, err)
	r := api.RegisterRequest{ID: "c1", PID: 7, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 1 << 40}}}
	reply, err := c.Register(ctx, r)
	equal("register", reply, api.RegisterReply{Slice: s.slice, Dir: "/d", Library: "/l"}, err)
	equal("what was asked for", s.request, r, nil)
	all, err := c.Slices(ctx)
	equal("slices", all, []api.Slice{s.slice}, err)
	all, err = c.SlicesWithCommands(ctx)
	named := s.slice
	named.Command = "python"
	equal("slices with commands", all, []api.Slice{named}, err)
	one, err := c.Slice(ctx, "c1")
	equal("slice", one, s.slice, err)
	released, err := c.Release(ctx, "c1", 1<<64-1, true)
	equal("release", released, s.slice, err)
	equal("what was to be released", s.args, [2]any{uint64(1<<64 - 1), true}, nil)
	ttl := time.Minute
	change := api.ChangeRequest{Quotas: []api.Quota{{Device: "0", Percent: 30}}, TTL: &ttl}
	changed, err := c.Change(ctx, "c1", change)
	equal("change", changed, s.slice, err)
	equal("what was to be changed", s.changed, change, nil)
	renewed, err := c.Renew(ctx, "c1", api.RenewRequest{TTL: &ttl})
	equal("renew", renewed, s.slice, err)
	equal("what it was renewed by", s.changed, api.ChangeRequest{TTL: &ttl}, nil)
	health, err := c.Health(ctx)
	equal("health", health, api.Health{Live: true, Checks: []api.Check{{Name: "socket", For: api.ForReady, Age: 3, Message: "m"}}}, err)
	devices, err := c.Devices(ctx)
	equal("devices", devices, []api.Device{{UUID: "GPU-1", Total: 1 << 40}}, err)
	runs, err := c.History(ctx)
	equal("history", runs, []api.Run{{Slice: "c1", Refusal: &api.Refusal{Device: "GPU-1"}}}, err)
	limits, err := c.Limits(ctx, nil)
	equal("limits", limits, api.UserLimits{UID: 7}, err)
	limits, err = c.Limits(ctx, &api.User{UID: 8, Groups: []uint32{9, 10}})
	equal("a user's limits", limits, api.UserLimits{UID: 8, Devices: []api.DeviceLimit{{Index: 2, Left: 1 << 40}}}, err)
}

// A program that answers instead of the enforcer must not fill the client's memory.
func TestEndlessAnswerIsAbandoned(t *testing.T) {
	path := socketPath(t)
	l := must.Get(net.Listen("unix", path))(t)
	defer l.Close()
	sent := make(chan int64, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\n")
			n, _ := io.Copy(conn, endless{})
			conn.Close()
			sent <- n
		}
	}()
	c, ctx := New(path), context.Background()
	for what, ask := range map[string]struct {
		do    func() error
		limit int64
	}{
		"info":     {func() error { _, err := c.Info(ctx); return err }, maxOne},
		"register": {func() error { _, err := c.Register(ctx, api.RegisterRequest{}); return err }, maxOne},
		"release":  {func() error { _, err := c.Release(ctx, "c1", 0, true); return err }, maxOne},
		"slices":   {func() error { _, err := c.Slices(ctx); return err }, maxList},
		"slice":    {func() error { _, err := c.Slice(ctx, "c1"); return err }, maxList},
		"health":   {func() error { _, err := c.Health(ctx); return err }, maxOne},
		"devices":  {func() error { _, err := c.Devices(ctx); return err }, maxList},
		"history":  {func() error { _, err := c.History(ctx); return err }, maxList},
		"read":     {func() error { _, err := c.Watch().Read(ctx); return err }, maxList},
	} {
		expect.ErrorContains(t, ask.do(), "more than", what)
		// The socket's buffers can take more than the client reads.
		if n := <-sent; n > ask.limit+4<<20 {
			t.Errorf("%s: %d bytes of an answer were read, want at most %d", what, n, ask.limit)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestClientReturnsErrorsByTheirCode(t *testing.T) {
	s := &service{}
	c := enforcer(t, s)
	for _, want := range []*api.Error{
		api.ErrBadRequest, api.ErrNotFound, api.ErrExists, api.ErrRunning, api.ErrQuotaExceeded, api.ErrNoDevice, api.ErrExpired,
	} {
		s.err = &api.Error{Code: want.Code, Message: "because", Requested: 3, Limit: 2}
		_, err := c.Slice(context.Background(), "c1")
		var e *api.Error
		if !errors.Is(err, want) || !errors.As(err, &e) || *e != *s.err.(*api.Error) || errors.Is(err, api.ErrUnreachable) {
			t.Errorf("%s: got %v", want.Code, err)
		}
	}
	expect.ErrorIs(t, must.Err(c.Slice(context.Background(), "a/b")), api.ErrBadRequest, "an id that is none")
	expect.ErrorIs(t, must.Err(c.Release(context.Background(), "a?force=true", 0, false)), api.ErrBadRequest, "an id that is none")
	expect.ErrorIs(t, must.Err(c.Renew(context.Background(), "c1", api.RenewRequest{})), api.ErrBadRequest, "renewed by nothing")
	_, err := c.Register(context.Background(), api.RegisterRequest{ID: "c1", Container: strings.Repeat("x", 1<<20)})
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeTooLarge {
		t.Errorf("a request that is too large: %v", err)
	}
}

func TestPermissionErrorNamesWhoIsAllowed(t *testing.T) {
	err := New("/s").unreachable(syscall.EACCES)
	if !errors.Is(err, os.ErrPermission) || errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "socket /s: root may") {
		t.Errorf("got %v", err)
	}
}

func TestAnUnreachableEnforcerIsAnErrorWithARemedy(t *testing.T) {
	path := socketPath(t)
	refused := path + "2"
	l := must.Get(net.Listen("unix", refused))(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, socket := range []string{path, refused} {
		_, err := New(socket).Info(context.Background())
		if !errors.Is(err, api.ErrUnreachable) || !strings.HasSuffix(err.Error(), advice.Start("gpusliced")) || !strings.Contains(err.Error(), socket) {
			t.Errorf("got %v", err)
		}
	}
}

// answering accepts connections one by one, and answers each with f.
func answering(t *testing.T, f func(net.Conn)) *Client {
	t.Helper()
	path := socketPath(t)
	l := must.Get(net.Listen("unix", path))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f(conn)
			conn.Close()
		}
	}()
	return New(path)
}

func TestRequestToHungEnforcerTimesOut(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	c := answering(t, func(net.Conn) { <-hang })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Info(ctx); !errors.Is(err, api.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	cancelled, cancel2 := context.WithCancel(context.Background())
	cancel2()
	expect.ErrorIs(t, must.Err(c.Info(cancelled)), context.Canceled)
}

func TestTruncatedOrForeignAnswerIsAnError(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":           "",
		"not HTTP":          "SSH-2.0-OpenSSH\r\n\r\n",
		"no end of headers": "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n",
		"a body cut off":    "HTTP/1.0 200 OK\r\ncontent-length: 100\r\n\r\n{}",
		"a body too long":   "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n{}",
		"a strange status":  "HTTP/1.0 x OK\r\nContent-Length: 2\r\n\r\n{}",
		"not JSON":          "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
		"a foreign error":   "HTTP/1.0 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nhi",
	} {
		c := answering(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
		})
		if info, err := c.Info(context.Background()); err == nil {
			t.Errorf("%s: got %+v", name, info)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if status, _, err := parse(raw); err == nil && (status < 200 || status > 599) {
			t.Errorf("status %d", status)
		}
	})
}

func TestAClientWaitsForAPlaceInAFullQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := must.Get(net.Listen("unix", path))(t)
	defer l.Close()
	raw, err := l.(*net.UnixListener).SyscallConn()
	must.Do(t, err)
	if failed := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 1) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	for err == nil { // until the queue is full
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			defer conn.Close()
		}
	}
	must.True(t, errors.Is(err, syscall.EAGAIN), err)
	answered := make(chan error, 1)
	go func() {
		_, err := New(path).Info(context.Background())
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("it does not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if n, _ := conn.Read(make([]byte, 4096)); n > 0 {
					_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}
			}()
		}
	}()
	expect.NoError(t, <-answered)
}

func TestOlderEnforcerGetsTheRequestWithoutNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := must.Get(net.Listen("unix", path))(t)
	defer l.Close()
	bodies := make(chan string, 4)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil {
				conn.Close()
				continue
			}
			text, _ := io.ReadAll(r.Body)
			status, answer := "201 Created", `{"slice": {"id": "c1"}, "dir": "/d"}`
			if bodies <- string(text); strings.Contains(string(text), `"image"`) { // as the previous release answers
				status, answer = "400 Bad Request", `{"code":"bad_request","message":"the request cannot be read: unknown field \"image\""}`
			}
			_, _ = fmt.Fprintf(conn, "HTTP/1.0 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(answer), answer)
			conn.Close()
		}
	}()
	request := api.RegisterRequest{ID: "c1", PID: 7, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 1 << 40}}, Names: api.Names{Image: "cuda:13"}}
	reply := must.Get(New(path).Register(context.Background(), request))(t)
	must.Equal(t, reply.Dir, "/d", "dir")
	if first, second := <-bodies, <-bodies; strings.Replace(first, `,"image":"cuda:13"`, "", 1) != second {
		t.Errorf("asked with %s, then %s", first, second)
	}
}

func TestPoolsAreAskedForByName(t *testing.T) {
	s := &service{pool: api.Pool{
		Name: "llm", Quotas: []api.Quota{{Device: "*", Bytes: 1 << 62}}, State: api.Active, Created: time.Now().UTC().Round(0),
		Devices: []api.PoolUse{{Device: "GPU-1", Index: -1, Limit: 1 << 62}}, Members: []string{"a", "b"}, ProcessCount: 3,
	}}
	c, ctx := enforcer(t, s), context.Background()
	quotas := []api.Quota{{Device: "0", Percent: 50}}
	for want, ask := range map[string]func() (api.Pool, error){
		"create llm": func() (api.Pool, error) { return c.CreatePool(ctx, "llm", api.PoolRequest{Quotas: quotas}) },
		"set llm":    func() (api.Pool, error) { return c.SetPool(ctx, "llm", api.PoolRequest{Quotas: quotas}) },
		"delete llm": func() (api.Pool, error) { return c.DeletePool(ctx, "llm") },
	} {
		p, err := ask()
		if err != nil || !reflect.DeepEqual(p, s.pool) || s.args[0] != want {
			t.Errorf("%s: %+v %v, requested: %v", want, p, err, s.args)
		}
		if s.args[1] != nil && !reflect.DeepEqual(s.args[1], quotas) {
			t.Errorf("%s: asked for %v", want, s.args[1])
		}
	}
	expect.True(t, reflect.DeepEqual(must.Get(c.Pool(ctx, "llm"))(t), s.pool), "another pool was shown")
	expect.True(t, reflect.DeepEqual(must.Get(c.Pools(ctx))(t), []api.Pool{s.pool}), "other pools were listed")
	for _, name := range []string{"", "../slices", ".x", "a b"} {
		expect.ErrorIs(t, must.Err(c.Pool(ctx, name)), api.ErrBadRequest, name)
	}
	s.err = api.Errorf(api.CodeRunning, "it has members")
	expect.ErrorIs(t, must.Err(c.DeletePool(ctx, "llm")), api.ErrRunning)
}

func TestARequestWaitsWhileSlicesAreEvicted(t *testing.T) {
	room := api.Errorf(api.CodeBusy, "idle elastic slices are being evicted")
	room.Device = "GPU-1"
	for name, c := range map[string]struct {
		err   error
		asked int
	}{
		"room is made":       {room, 3},
		"as many ask as may": {api.Errorf(api.CodeBusy, "try again later"), 1},
		"there is none":      {api.Errorf(api.CodeQuotaExceeded, "no"), 1},
		"nobody answers":     {errors.New("no"), 1},
	} {
		asked := 0
		err := AwaitRoom(t.Context(), func() error {
			if asked++; asked <= 2 {
				return c.err
			}
			return nil
		})
		if asked != c.asked || (err == nil) != (c.asked > 1) {
			t.Errorf("%s: asked %d times, %v", name, asked, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	expect.ErrorIs(t, AwaitRoom(ended, func() error { return room }), room)
}

func TestEachRequestSendsTheToken(t *testing.T) {
	token := api.Token(strings.Repeat("ab", 32))
	s := &service{}
	c := enforcer(t, s)
	if _, err := c.Join(api.WithToken(context.Background(), token), "s1", api.JoinRequest{PID: 7}); err != nil || s.token != token || s.joined != 7 {
		t.Errorf("%v, %q, %d", err, string(s.token), s.joined)
	}
	// Invalid tokens are not sent: they could inject headers.
	for _, wrong := range []api.Token{"", "x\r\nX-Evil: 1", token + "\r\n", token[:10]} {
		s.token = ""
		if _, err := c.Join(api.WithToken(context.Background(), wrong), "s1", api.JoinRequest{PID: 7}); err != nil || s.token != "" {
			t.Errorf("%q: %v, %q", string(wrong), err, string(s.token))
		}
		if sent := request(api.WithToken(context.Background(), wrong), "GET", "/", "1.0", nil); bytes.Contains(sent, []byte("Authorization")) {
			t.Errorf("%q", sent)
		}
	}
}
