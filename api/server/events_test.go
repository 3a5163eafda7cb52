// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func withEvents(n, kept int) *fakeService {
	f := &fakeService{log: event.NewLog(kept)}
	for range n {
		f.log.Append("c1", api.Event{Kind: api.EventRefused, Slice: "c1", Command: "a\nb"})
	}
	return f
}

func next(t *testing.T, lines *bufio.Scanner) api.Event {
	t.Helper()
	must.True(t, lines.Scan(), "there is no further line", lines.Err())
	var e api.Event
	must.Do(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
	return e
}

type answer struct {
	status int
	kind   string
	body   io.Reader
}

func get(t *testing.T, path, target string) answer {
	t.Helper()
	r, err := httpClient(path).Get("http://gpuslice" + target)
	must.Do(t, err)
	t.Cleanup(func() { r.Body.Close() })
	return answer{r.StatusCode, r.Header.Get("Content-Type"), r.Body}
}

func TestEventsAreOneInEachLine(t *testing.T) {
	path := socketPath(t)
	start(t, withEvents(100, 64), path) // more than one batch
	for target, first := range map[string]uint64{"/v1/events": 37, "/v1/events?since=90": 91, "/v1/events?since=5000&follow=false": 37} {
		r := get(t, path, target)
		if r.status != 200 || r.kind != eventsType {
			t.Errorf("%s: %d, %v", target, r.status, r.kind)
		}
		lines := bufio.NewScanner(r.body)
		for seq := first; seq <= 100; seq++ {
			if e := next(t, lines); e.Seq != seq || e.Command != "a\nb" {
				t.Fatalf("%s: %+v, want number %d", target, e, seq)
			}
		}
		expect.True(t, !lines.Scan(), target, "there is more", lines.Text())
	}
}

func TestFollowerGetsEventsAndTheNumberMissed(t *testing.T) {
	path, f := socketPath(t), withEvents(10, 4)
	start(t, f, path)
	r := get(t, path, "/v1/events?since=2&follow=true")
	lines := bufio.NewScanner(r.body)
	if e := next(t, lines); e.Kind != api.EventMissed || e.Count != 4 || e.Seq != 6 {
		t.Errorf("%+v", e)
	}
	for seq := uint64(7); seq <= 10; seq++ {
		expect.Equal(t, next(t, lines).Seq, seq, "seq")
	}
	f.log.Append("c1", api.Event{Kind: api.EventReleased})
	if e := next(t, lines); e.Seq != 11 || e.Kind != api.EventReleased {
		t.Errorf("%+v", e)
	}
}

func TestReconnectedFollowerLearnsOfARestart(t *testing.T) {
	path, f := socketPath(t), withEvents(5, 64)
	stop := start(t, f, path)
	lines := bufio.NewScanner(get(t, path, "/v1/events").body)
	var last api.Event
	for range 5 {
		last = next(t, lines)
	}
	must.Do(t, stop())
	start(t, withEvents(10, 64), path)
	for _, follow := range []string{"true", "false"} {
		lines = bufio.NewScanner(get(t, path, fmt.Sprintf("/v1/events?since=%d&instance=%s&follow=%s", last.Seq, last.Instance, follow)).body)
		missed := next(t, lines)
		if missed.Kind != api.EventMissed || missed.Cause != api.MissedRestarted || missed.Instance == last.Instance {
			t.Errorf("%+v", missed)
		}
		for seq := uint64(1); seq <= 10; seq++ {
			if e := next(t, lines); e.Seq != seq || e.Instance != missed.Instance {
				t.Errorf("%+v, want number %d", e, seq)
			}
		}
	}
}

func TestFollowersEndWithTheEnforcer(t *testing.T) {
	path, f := socketPath(t), withEvents(1, 4)
	stop := start(t, f, path)
	r := get(t, path, "/v1/events?follow=true")
	lines := bufio.NewScanner(r.body)
	next(t, lines)
	f.log.Close()
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
	expect.NoError(t, stop())
}

// A follower that reads nothing delays neither writers of events nor other requests. Followers leave connections for other
// clients.
func TestFollowersDoNotBlockOtherRequests(t *testing.T) {
	path, f := socketPath(t), withEvents(1, 64)
	start(t, f, path)
	var first net.Conn
	for i := range maxStreams {
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /v1/events?follow=true HTTP/1.0\r\n\r\n")
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(answer, " 200 ") {
			t.Fatalf("follower %d: %q, %v", i, answer, err)
		}
		if i == 0 {
			first = conn
		}
	}
	long := strings.Repeat("x", 1000)
	for range 2000 { // more than the sockets buffer
		f.log.Append("c1", api.Event{Kind: api.EventRefused, Tenant: long})
	}
	r := get(t, path, "/v1/events?follow=true")
	var refusal api.Error
	if err := json.NewDecoder(r.body).Decode(&refusal); err != nil || refusal.Code != api.CodeBusy || r.status != 503 {
		t.Errorf("one follower too many: %d, %+v, %v", r.status, refusal, err)
	}
	expect.Equal(t, get(t, path, "/v1/info").status, 200, "another question")
	first.Close()
	await.That(t, "the place of one that has gone is free", func() bool {
		ctx, cancel := context.WithCancel(context.Background())
		request, _ := http.NewRequestWithContext(ctx, "GET", "http://gpuslice/v1/events?follow=true", nil)
		r, err := httpClient(path).Do(request)
		must.Do(t, err)
		cancel()
		r.Body.Close()
		return r.StatusCode == 200
	})
}
