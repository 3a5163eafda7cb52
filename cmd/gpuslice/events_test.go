// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/enforcer/event"
)

// told is an enforcer that serves events only.
type told struct {
	server.Service
	log *event.Log
}

func (h told) Events(ctx context.Context, instance string, since uint64, wait bool) ([]api.Event, error) {
	if wait {
		if err := h.log.Wait(ctx, instance, since); err != nil {
			return nil, err
		}
	}
	return h.log.Since(instance, since, 100), nil
}

// serve starts an enforcer with these events, and returns its socket.
func serve(t *testing.T, happened ...api.Event) (*event.Log, string) {
	t.Helper()
	h := told{log: event.NewLog(64)}
	for _, e := range happened {
		h.log.Append(e.Slice, e)
	}
	socket := listen(t, h)
	t.Cleanup(h.log.Close) // before the server stops, since it waits for followers
	return h.log, socket
}

func listen(t *testing.T, service server.Service) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	t.Cleanup(serveAt(t, socket, service))
	return socket
}

func serveAt(t *testing.T, socket string, service server.Service) (end func()) {
	t.Helper()
	l, err := server.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.New(service, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func runEvents(t *testing.T, out *bytes.Buffer, socket string, args ...string) error {
	t.Helper()
	app := newApp()
	app.Writer, app.ErrWriter = out, io.Discard
	return app.Run(append([]string{"gpuslice", "--socket", socket, "events"}, args...))
}

func TestEventsAreFilteredBySliceAndTime(t *testing.T) {
	now := time.Now()
	_, socket := serve(t,
		api.Event{Kind: api.EventRegistered, Slice: "abc", Container: "0123", Time: now.Add(-time.Hour)},
		api.Event{Kind: api.EventRefused, Slice: "abc", Container: "0123", Count: 1, Time: now},
		api.Event{Kind: api.EventRegistered, Slice: "xyz", Time: now},
		api.Event{Kind: api.EventPoolCreated, Pool: "llm", Time: now},
		api.Event{Kind: api.EventRefused, Slice: "xyz", Pool: "llm", Count: 1, Time: now},
	)
	for args, want := range map[string]string{
		"":                   "1 2 3 4 5",
		"ab":                 "1 2",
		"012":                "1 2",
		"bc":                 "",
		"--since 10m":        "2 3 4 5",
		"--since 2":          "3 4 5",
		"--since 10m abc":    "2",
		"-n 2":               "4 5",
		"-n 1 abc":           "2",
		"-n 9":               "1 2 3 4 5",
		"--since 1d -n 3":    "3 4 5",
		"--since 100000":     "1 2 3 4 5",   // of an earlier enforcer
		"--since 5f0c2a91:3": "0 1 2 3 4 5", // a missed event comes first
		"--since 1h30m xy":   "3 5",
		"abc --since 10m":    "2",
		"abc --since=1":      "2",
		"llm":                "4 5",
		"ll":                 "",
		"-- xyz":             "3 5",

		"--filter kind=refused":                         "2 5",
		"--filter kind=refused --filter slice=ab":       "2",
		"--filter kind=refused --filter pool=llm":       "5",
		"--filter kind=refused -n 1":                    "5",
		"--filter kind=released":                        "",
		"--filter container=012 --since 10m":            "2",
		"--format json --filter kind=pool_created -n 3": "4",
	} {
		var out bytes.Buffer
		if err := runEvents(t, &out, socket, append([]string{"--json"}, strings.Fields(args)...)...); err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			var e api.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v: %s", args, err, line)
			}
			got = append(got, string(rune('0'+e.Seq)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: events %q, want %q", args, got, want)
		}
	}
	var formatted bytes.Buffer
	if err := runEvents(t, &formatted, socket, "--filter", "kind=registered", "--format", `{{.Kind}}\t{{.Slice}}`); err != nil || formatted.String() != "registered\tabc\nregistered\txyz\n" {
		t.Errorf("%v: %q", err, formatted.String())
	}
	for args, want := range map[string]string{
		"--filter kind=x":           "of kind registered, released, refused, ",
		"--filter colour=x":         "with the keys kind, slice, container, tenant, pool and device",
		"--format {{.Colour}}":      "there is no field .Colour",
		"--format table":            "printed as they happen",
		"--format {{.Kind}} --json": "--json is the latter",
		"--format=":                 "a template such as {{.Kind}}, or json, is accepted",
	} {
		if _, said, code := cliRun(append([]string{"--socket", "/nonexistent", "events"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(said, want) || strings.Contains(said, "\n") {
			t.Errorf("events %s: %d, %s", args, code, said)
		}
	}
	var out bytes.Buffer
	if err := runEvents(t, &out, socket, "xyz", "--no-trunc"); err != nil || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), "registered      xyz") {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestMissedEventsOfAnotherSliceAreNotShown(t *testing.T) {
	now := time.Now()
	happened := []api.Event{{Kind: api.EventRegistered, Slice: "quiet", Time: now.Add(-2 * time.Hour)}}
	for range 100 {
		happened = append(happened, api.Event{Kind: api.EventRefused, Slice: "loud", Count: 1, Time: now.Add(-time.Hour)})
	}
	_, socket := serve(t, append(happened, api.Event{Kind: api.EventReleased, Slice: "quiet", Time: now})...)
	for args, want := range map[string]int{"": 1, "quiet": 0, "loud": 1, "--since 10m": 0, "--since 90m": 1} {
		var out bytes.Buffer
		if err := runEvents(t, &out, socket, strings.Fields(args)...); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if n := strings.Count(out.String(), "missed          loud          no longer kept: 38 events"); n != want || n != strings.Count(out.String(), "missed") {
			t.Errorf("%q: %s", args, out.String())
		}
	}
}

func TestMissingEventsAndForeignNumbersAreReported(t *testing.T) {
	_, socket := serve(t, api.Event{Kind: api.EventRegistered, Slice: "abc"}, api.Event{Kind: api.EventReleased, Slice: "abc"})
	for args, want := range map[string]string{
		"":             "",
		"ab":           "",
		"nope":         `no such event of "nope" is kept`,
		"--since 1 ab": "",
		"--since 2 ab": "",
		"--since 2":    "", // there is no later event
		"--since 3":    "gpusliced has not come to event 3",
		"--since 0a:3": "", // the first event reports it
	} {
		var said bytes.Buffer
		app := newApp()
		app.Writer, app.ErrWriter = io.Discard, &said
		if err := app.Run(append([]string{"gpuslice", "--socket", socket, "events"}, strings.Fields(args)...)); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if !strings.Contains(said.String(), want) || (want == "") != (said.Len() == 0) || strings.Count(said.String(), "\n") > 1 {
			t.Errorf("%q: said %q", args, said.String())
		}
	}
}

func TestFollowingWaitsForAnEnforcerThatEnded(t *testing.T) {
	log, socket := serve(t, api.Event{Kind: api.EventRegistered, Slice: "abc"})
	time.AfterFunc(20*time.Millisecond, func() {
		log.Append("abc", api.Event{Kind: api.EventReleased, Slice: "abc", Cause: "ended"})
		log.Close()
	})
	ctx, cancel := context.WithCancel(context.Background())
	said := waits{cancel: cancel, until: "waiting until it does"}
	var out bytes.Buffer
	app := newApp()
	app.Writer, app.ErrWriter = &out, &said
	if err := app.RunContext(ctx, []string{"gpuslice", "--socket", socket, "events", "abc", "-f"}); err != nil {
		t.Errorf("%v", err)
	}
	if !strings.Contains(out.String(), "registered") || !strings.Contains(out.String(), "released") || strings.Count(said.String(), "\n") != 1 {
		t.Errorf("%q, %q", out.String(), said.String())
	}
}

// waits cancels once the text has been written.
type waits struct {
	bytes.Buffer
	cancel context.CancelFunc
	until  string
}

func (w *waits) Write(p []byte) (int, error) {
	if n, err := w.Buffer.Write(p); err != nil || !strings.Contains(w.String(), w.until) {
		return n, err
	}
	w.cancel()
	return len(p), nil
}

func TestAnInvalidTimeIsRefused(t *testing.T) {
	_, socket := serve(t)
	for _, args := range [][]string{{"--since", "yesterday"}, {"--since", "-5m"}, {"a", "b"}, {"-n", "0"}, {"-n", "-1"}} {
		var out bytes.Buffer
		if err := runEvents(t, &out, socket, args...); err == nil || out.Len() > 0 {
			t.Errorf("%q: %v, %q", args, err, out.String())
		}
	}
}
