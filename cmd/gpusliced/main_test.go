// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/client"
)

func TestAFlagGoesBeforeTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte("[enforcer]\nsocket = \"/a\"\nrun_dir = \"/b\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, done, err := parse([]string{"--config", file, "--socket", "/c"}, io.Discard, io.Discard)
	if done || err != nil || c.Enforcer.Socket != "/c" || c.Enforcer.RunDir != "/b" || c.Enforcer.StateDir != api.DefaultState {
		t.Fatal(c, done, err)
	}
}

func TestWrongUsageIsSaid(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"start"}, {"--no-such"}, {"--log-level", "loud"}, {"--config", "/nonexistent"}} {
		var said bytes.Buffer
		err := run(context.Background(), append([]string{"--config", empty}, args...), io.Discard, &said)
		if err == nil || !strings.Contains(said.String()+err.Error(), strings.TrimLeft(args[len(args)-1], "-")) {
			t.Errorf("%v: %v, %q", args, err, said.String())
		}
	}
}

func TestItTellsSystemdWhenItIsReadyAndStopsWhenAsked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed, to serve containers")
	}
	dir, err := os.MkdirTemp("", "gs-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	notified, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notified.Close()
	t.Setenv("NOTIFY_SOCKET", path("notify"))
	if err := os.WriteFile(path("config.toml"), []byte("[enforcer]\nnvml = \"off\"\ngroup = \"no-such-group\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"--config", path("config.toml"), "--socket", path("control.sock"),
			"--run-dir", path("run"), "--state-dir", path("state"), "--metrics", "127.0.0.1:0",
		}, io.Discard, io.Discard)
	}()
	hear := func(want string) {
		t.Helper()
		_ = notified.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 64)
		if n, err := notified.Read(b); err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v: want %q", b[:n], err, want)
		}
	}
	hear("READY=1")
	info, err := client.New(path("control.sock")).Info(context.Background())
	if err != nil || info.PID != os.Getpid() || !strings.Contains(info.Truth, "off") {
		t.Fatalf("%+v, %v", info, err)
	}
	stop()
	hear("STOPPING=1")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsLackingIsSaidAtTheStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed, to serve containers")
	}
	dir := short(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	text := fmt.Sprintf("[enforcer]\nnvml = \"off\"\ngroup = \"\"\nlibrary = %q\n[audit]\nfile = %q\n", path("no.so"), path("none/audit.jsonl"))
	if err := os.WriteFile(path("config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	words := []string{"--config", path("config.toml"), "--socket", path("control.sock"), "--run-dir", path("run"), "--state-dir", path("state")}

	hear := notifications(t, dir)
	ctx, stop := context.WithCancel(context.Background())
	var log lines
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, words, io.Discard, &log) }()
	if got := hear(10 * time.Second); got != "READY=1" {
		t.Fatalf("%q", got)
	}
	for _, want := range []string{path("no.so"), path("none/audit.jsonl")} {
		for deadline := time.Now().Add(10 * time.Second); !log.has("level=ERROR", want); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no error names %s", want)
			}
		}
	}
	h, err := client.New(path("control.sock")).Health(ctx)
	if i := slices.IndexFunc(h.Checks, func(c api.Check) bool { return c.Name == "audit" }); err != nil || !h.Ready || i < 0 || h.Checks[i].OK {
		t.Errorf("%+v, %v", h, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	// An address that is another's: it is never said to be ready.
	for _, address := range []string{taken.Addr().String(), "256.0.0.1:1", "nowhere"} {
		var log lines
		err := run(context.Background(), append(words, "--metrics", address), io.Discard, &log)
		if err == nil || !strings.Contains(err.Error(), address) || log.has("ready") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// lines is a log that is written while it is read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// has says whether one line has all of these.
func (l *lines) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}
