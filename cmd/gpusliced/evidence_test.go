// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/await"
)

// notifications replaces systemd during the test.
func notifications(t *testing.T, dir string) (hear func(patience time.Duration) string) {
	t.Helper()
	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func(patience time.Duration) string {
		_ = socket.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 64)
		n, err := socket.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestTheWatchdogIsFedOnlyWhileTheEnforcerMakesProgress(t *testing.T) {
	hear := notifications(t, short(t))
	t.Setenv("WATCHDOG_USEC", "30000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	var said bytes.Buffer
	var hangs atomic.Bool
	asked := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchdog(ctx, slog.New(slog.NewTextHandler(&said, nil)), func() api.Health {
			select {
			case asked <- struct{}{}:
			case <-ctx.Done():
			}
			h := api.Health{Checks: []api.Check{
				{Name: "truth", Message: "the driver is asleep"}, {Name: "loop", For: api.ForLive, OK: !hangs.Load(), Message: "it stands still"},
			}}
			h.Conclude()
			return h
		})
	}()
	fed := func() {
		t.Helper()
		if got := hear(10 * time.Second); got != "WATCHDOG=1" {
			t.Fatalf("%q", got)
		}
	}
	<-asked
	fed()
	<-asked
	fed()
	hangs.Store(true)
	for range 4 { // due several times
		<-asked
	}
	if got := hear(50 * time.Millisecond); got != "" {
		t.Errorf("fed while it hangs: %q", got)
	}
	hangs.Store(false)
	<-asked
	fed()
	stop()
	<-done
	if text := said.String(); strings.Count(text, "hangs") != 1 || !strings.Contains(text, "it stands still") || strings.Contains(text, "asleep") {
		t.Errorf("the log: %s", text)
	}
}

func TestThereIsAWatchdogOnlyIfSystemdAskedForOne(t *testing.T) {
	for _, c := range []struct{ microseconds, pid string }{
		{"", ""}, {"0", ""}, {"-5", ""}, {"x", ""}, {"1000", "1"},
	} {
		t.Setenv("WATCHDOG_USEC", c.microseconds)
		t.Setenv("WATCHDOG_PID", c.pid)
		watchdog(t.Context(), slog.New(slog.DiscardHandler), func() api.Health {
			t.Errorf("there is one with %+v", c)
			return api.Health{Live: true}
		})
		if t.Failed() {
			return
		}
	}
}

func TestRequestsAreAuditedAndProbesReportReadiness(t *testing.T) {
	d := newDaemon(t, "[enforcer]\nnvml = \"off\"\ngroup = \"no-such-group\"\n[audit]\nfile = \"DIR/audit.jsonl\"\n")
	stop := d.begin("--metrics", "127.0.0.1:0")
	_, address, _ := strings.Cut(d.log.String(), `msg="metrics are served" address=`)
	address, _, _ = strings.Cut(address, "\n")
	c, ctx := d.client(), context.Background()
	request := api.RegisterRequest{ID: "s1", PID: os.Getpid(), Session: true, Quotas: []api.Quota{{Device: "*", Bytes: 1 << 30}}}
	if _, err := c.Register(ctx, request); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(ctx, request); !errors.Is(err, api.ErrExists) {
		t.Fatal(err)
	}
	if _, err := c.Release(ctx, "s1", 0, true); err != nil {
		t.Fatal(err)
	}

	probe := func(what string) int {
		t.Helper()
		for deadline := time.Now().Add(await.Patience); ; time.Sleep(10 * time.Millisecond) {
			r, err := http.Get("http://" + address + what)
			if err == nil {
				r.Body.Close()
				return r.StatusCode
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	if live, ready := probe("/healthz"), probe("/readyz"); live != 200 || ready != 200 {
		t.Errorf("%d, %d", live, ready)
	}
	if h, err := c.Health(ctx); err != nil || !h.Live || !h.Ready {
		t.Errorf("%+v, %v", h, err)
	}
	if err := os.Remove(d.path("control.sock")); err != nil {
		t.Fatal(err)
	}
	if live, ready := probe("/healthz"), probe("/readyz"); live != 200 || ready != 503 {
		t.Errorf("without its socket: %d, %d", live, ready)
	}

	stop()
	said := audited(t, d.path("audit.jsonl"))
	want := []string{
		"registered ok", "request POST /v1/slices ok", "request POST /v1/slices refused exists",
		"released ok asked", "request DELETE /v1/slices/{id} ok",
	}
	if strings.Join(said, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", said)
	}
}

// audited returns the entries of the audit log in short form. All have to be of the slice s1 and requested by this process.
func audited(t *testing.T, file string) (said []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Slice != "s1" || e.Time.IsZero() {
			t.Errorf("%s", line)
		}
		if e.Kind == audit.KindRequest && (e.PID != os.Getpid() || e.UID == nil || *e.UID != 0) {
			t.Errorf("the entry does not name the requester: %s", line)
		}
		said = append(said, strings.Join(strings.Fields(fmt.Sprint(e.Kind, " ", e.Operation, " ", e.Result, " ", e.Code, " ", e.Cause)), " "))
	}
	return said
}

func TestRemovedOrForeignSocketIsNotReady(t *testing.T) {
	dir := short(t)
	socket, other := filepath.Join(dir, "s"), filepath.Join(dir, "other")
	for _, path := range []string{socket, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var c checks
	for _, step := range []struct {
		do   func() error
		says string // "": no error
	}{
		{func() error { return nil }, "not there yet"},
		{func() error { return c.checkSocket(socket) }, ""},
		{func() error { return os.Rename(other, socket) }, "belongs to another process"},
		{func() error { return os.Remove(socket) }, "is gone"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if all := c.check(); len(all) != 1 || all[0].For != api.ForReady || all[0].OK != (step.says == "") || !strings.Contains(all[0].Message, step.says) {
			t.Errorf("%+v, want %q", all, step.says)
		}
	}
}
