// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// crowd has several slices, and records the requests.
type crowd struct {
	service
	slices  []api.Slice
	devices []api.Device
	denied  bool // access to devices is forbidden
	missing string
	asked   []string
}

func (c *crowd) Slices(context.Context) ([]api.Slice, error) {
	c.asked = append(c.asked, "slices")
	return c.slices, c.err
}

func (c *crowd) Devices(context.Context) ([]api.Device, error) {
	c.asked = append(c.asked, "devices")
	if c.denied {
		return nil, api.ErrForbidden
	}
	return c.devices, nil
}

func (c *crowd) Slice(_ context.Context, id string) (api.Slice, error) {
	c.asked = append(c.asked, id)
	for _, s := range c.slices {
		if s.ID == id && id != c.missing {
			s.Processes = []api.Process{{PID: 7, Devices: []api.ProcessUse{}}}
			return s, nil
		}
	}
	return api.Slice{}, api.ErrNotFound
}

func newCrowd(n int) *crowd {
	c := &crowd{devices: []api.Device{{UUID: "GPU-1", Total: 1 << 40}}}
	for i := range n {
		c.slices = append(c.slices, api.Slice{
			ID: fmt.Sprintf("c%03d", i), Tenant: `a "quoted" [tenant], {really}\`, Quotas: []api.Quota{}, Devices: []api.DeviceUse{{Device: "GPU-1", Used: uint64(i)}},
			Created: time.Unix(1e9, 0).UTC(),
		})
	}
	return c
}

type counting struct {
	net.Listener
	accepted atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted.Add(1)
	}
	return conn, err
}

// counted is enforcer with a counting listener.
func counted(t *testing.T, s server.Service) (*Client, *counting) {
	t.Helper()
	path := socketPath(t)
	l := must.Get(server.Listen(path, ""))(t)
	counts := &counting{Listener: l}
	go func() { _ = server.New(s, slog.New(slog.DiscardHandler)).Serve(t.Context(), counts) }()
	return New(path), counts
}

func TestLookEqualsTheSingleRequests(t *testing.T) {
	s := newCrowd(3)
	c, w := enforcer(t, s), (*Watcher)(nil)
	ctx := t.Context()
	w = c.Watch()
	check := func(what string, ids ...string) Snapshot {
		t.Helper()
		got := must.Get(w.Read(ctx, ids...))(t, what)
		all, err := c.Slices(ctx)
		if err != nil || !reflect.DeepEqual(got.Slices, all) {
			t.Errorf("%s: slices %+v, want %+v", what, got.Slices, all)
		}
		devices, err := c.Devices(ctx)
		if err != nil && !errors.Is(err, api.ErrForbidden) || !reflect.DeepEqual(got.Devices, devices) {
			t.Errorf("%s: devices %+v, want %+v", what, got.Devices, devices)
		}
		details := make(map[string]api.Slice)
		for _, id := range ids {
			if one, err := c.Slice(ctx, id); err == nil {
				details[id] = one
			}
		}
		expect.True(t, reflect.DeepEqual(got.Details, details), what, "details", got.Details, "want", details)
		return got
	}
	last := check("the first one")
	expect.True(t, last.Version != 0, "the first version is 0")
	for _, step := range []struct {
		what    string
		changes bool
		change  func()
		ids     []string
	}{
		{"nothing", false, func() {}, nil},
		{"one of them", true, func() { s.slices[1].Devices = []api.DeviceUse{{Device: "GPU-1", Used: 99}} }, nil},
		{"the order", true, func() { s.slices[0], s.slices[2] = s.slices[2], s.slices[0] }, nil},
		{"one is gone", true, func() { s.slices = s.slices[1:] }, nil},
		{"a device", true, func() { s.devices = []api.Device{{UUID: "GPU-1", Total: 1 << 41}} }, nil},
		{"processes are asked for", true, func() {}, []string{"c000", "c001"}},
		{"they are again", false, func() {}, []string{"c000", "c001"}},
		{"one is not found", true, func() { s.missing = "c001" }, []string{"c000", "c001"}},
		{"processes are not asked for", true, func() {}, nil},
		{"none is left", true, func() { s.slices = nil }, nil},
		{"none is, still", false, func() {}, nil},
		{"all devices are gone", true, func() { s.devices = nil }, nil},
	} {
		step.change()
		got := check(step.what, step.ids...)
		expect.Equal(t, got.Version != last.Version, step.changes, step.what, "version", got.Version, "after", last.Version)
		last = got
	}
	s.denied, s.slices = true, newCrowd(2).slices
	if got := check("a user without privileges", "c000"); got.Devices != nil || len(got.Details) != 1 {
		t.Errorf("devices %+v", got.Devices)
	}
	s.err = &api.Error{Code: api.CodeBusy, Message: "because"}
	var e *api.Error
	if _, err := w.Read(ctx); !errors.As(err, &e) || *e != *s.err.(*api.Error) {
		t.Errorf("got %v", err)
	}
	expect.ErrorIs(t, must.Err(w.Read(ctx, "a/b")), api.ErrBadRequest, "an id that is none")
}

func TestALookIsOneConnection(t *testing.T) {
	s := newCrowd(maxSeveral + 20)
	c, counts := counted(t, s)
	w := c.Watch()
	for _, row := range []struct{ ids, connections int }{{0, 1}, {3, 1}, {maxSeveral, 2}} {
		var ids []string
		for _, slice := range s.slices[:row.ids] {
			ids = append(ids, slice.ID)
		}
		before := counts.accepted.Load()
		s.asked = nil
		got, err := w.Read(t.Context(), ids...)
		if err != nil || len(got.Slices) != len(s.slices) || len(got.Details) != row.ids {
			t.Fatalf("%d slices, %d of them with processes: %v", len(got.Slices), len(got.Details), err)
		}
		if want := append([]string{"slices", "devices"}, ids...); !reflect.DeepEqual(s.asked, want) {
			t.Errorf("asked for %q, want %q", s.asked, want)
		}
		if n := int(counts.accepted.Load() - before); n != row.connections {
			t.Errorf("%d connections with the processes of %d slices, want %d", n, row.ids, row.connections)
		}
	}
}

// An unchanged answer costs no memory and little time.
func TestAnUnchangedAnswerIsNotDecodedAgain(t *testing.T) {
	body := func(slices []api.Slice) answer {
		text := must.Get(json.Marshal(slices))(t)
		return answer{200, text}
	}
	s := newCrowd(100)
	was := body(s.slices)
	s.slices[50].Devices[0].Used = 12345
	changed := body(s.slices)
	var version uint64
	var l list[api.Slice]
	must.Do(t, l.take(was, &version))
	all := testing.AllocsPerRun(20, func() { _ = new(list[api.Slice]).take(was, &version) })
	unchanged := testing.AllocsPerRun(20, func() { _ = l.take(was, &version) })
	now := was
	one := testing.AllocsPerRun(20, func() {
		if now = changed; version%2 == 0 {
			now = was
		}
		_ = l.take(now, &version)
	})
	if unchanged > 0 || one > all/10 {
		t.Errorf("%v allocations for 100 slices, %v if one of them has changed, %v if none has", all, one, unchanged)
	}
}

func TestTruncatedLookIsAnError(t *testing.T) {
	list := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
	for what, row := range map[string]struct{ sent, want string }{
		"nothing":                    {"", "not the enforcer's"},
		"one answer of two":          {list, "not the enforcer's"},
		"half of the second":         {list + list[:len(list)-1], "it has 1 bytes of 2"},
		"no list":                    {strings.Replace(list, "[]", "{}", 1) + list, "it is no list"},
		"a list of no slices":        {strings.Replace(list, "2\r\n\r\n[]", "3\r\n\r\n[7]", 1) + list, "cannot unmarshal"},
		"a negative length":          {strings.Replace(list, "Length: 2", "Length: -2", 1) + list, "bytes of -2"},
		"too many connections":       {"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 32\r\n\r\n" + `{"code":"busy","message":"wait"}`, "wait"},
		"two whole ones":             {list + list, ""},
		"got more answers than that": {list + list + list, "got more answers than that"},
		"the last without an end":    {list + "HTTP/1.1 200 OK\r\n\r\n[]", ""},
	} {
		c := answering(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, row.sent)
		})
		_, err := c.Watch().Read(t.Context())
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: got %v, want %q", what, err, row.want)
		}
	}
}

// The elements are those that encoding/json finds.
func FuzzElements(f *testing.F) {
	for _, text := range []string{`[]`, ` [ ] `, `[1]`, `[{"a":"]},[{\\\""},[1,2],"x,y"]`, `[1,]`, `[,1]`, `[1]2]`, `{}`, ``, `[`, `["]`, `["\"]`, `[[]`, "\v[1]", "[1]\u00a0", `[1}{,2]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want []json.RawMessage
		valid := json.Unmarshal(text, &want) == nil && want != nil
		got, err := elements(text)
		ours := err == nil
		for _, one := range got {
			ours = ours && json.Valid(one)
		}
		must.Equal(t, ours, valid, text, "is split into valid ones", got)
		for i := range want {
			if len(got) != len(want) || !bytes.Equal(bytes.Trim(got[i], space), want[i]) {
				t.Fatalf("%q: %q, want %q", text, got, want)
			}
		}
	})
}
