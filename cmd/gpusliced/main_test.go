// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/badconfig"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
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

func TestUsageErrorsAreReported(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"start"}, {"--no-such"}, {"--log-level", "loud"}, {"--config", "/nonexistent"}} {
		var said bytes.Buffer
		err := run(context.Background(), append([]string{"--config", empty}, args...), io.Discard, &said)
		usage := args[0] == "start" || args[0] == "--no-such"
		if err == nil || errors.Is(err, errUsage) != usage || !strings.Contains(said.String()+err.Error(), strings.TrimLeft(args[len(args)-1], "-")) {
			t.Errorf("%v: %v, %q", args, err, said.String())
		}
	}
}

func TestDaemonRefusesTheConfigurationsThatDoctorRefuses(t *testing.T) {
	for text := range badconfig.Files {
		file := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, refusal := config.Load(file)
		if err := run(context.Background(), []string{"--config", file}, io.Discard, io.Discard); err == nil || refusal == nil || err.Error() != refusal.Error() {
			t.Errorf("%q: %v, want %v", text, err, refusal)
		}
	}
}

// A stale socket would suggest a daemon that is down.
func TestASocketForUsersThatIsNotServedIsRemoved(t *testing.T) {
	d := newDaemon(t, "[enforcer]\nnvml = \"off\"\ngroup = \"\"\n[sessions]\nsocket = \"DIR/users.sock\"\n")
	left, err := server.ListenForUsers(d.path("users.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.path("users.sock")); err != nil {
		t.Fatal(err)
	}
	stop := d.begin()
	if _, err := os.Lstat(d.path("users.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	stop()
}

func TestDaemonNotifiesSystemdAndStopsOnSIGTERM(t *testing.T) {
	d := newDaemon(t, "[enforcer]\nnvml = \"off\"\ngroup = \"no-such-group\"\n")
	stop := d.begin("--metrics", "127.0.0.1:0")
	info, err := d.client().Info(context.Background())
	if err != nil || info.PID != os.Getpid() || !strings.Contains(info.Truth, "off") {
		t.Fatalf("%+v, %v", info, err)
	}
	stop()
	if got := d.notifications(10 * time.Second); got != "STOPPING=1" {
		t.Fatalf("%q", got)
	}
}

func TestMissingFilesAreReportedAtTheStart(t *testing.T) {
	d := newDaemon(t, "[enforcer]\nnvml = \"off\"\ngroup = \"\"\nlibrary = \"DIR/no.so\"\n[audit]\nfile = \"DIR/none/audit.jsonl\"\n")
	stop := d.begin()
	for _, want := range []string{d.path("no.so"), d.path("none/audit.jsonl")} {
		for deadline := time.Now().Add(await.Patience); !has(&d.log, "level=ERROR", want); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no error names %s", want)
			}
		}
	}
	h, err := d.client().Health(context.Background())
	if i := slices.IndexFunc(h.Checks, func(c api.Check) bool { return c.Name == "audit" }); err != nil || !h.Ready || i < 0 || h.Checks[i].OK {
		t.Errorf("%+v, %v", h, err)
	}
	stop()

	// If an address is in use, the daemon must never report to be ready.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, address := range []string{taken.Addr().String(), "256.0.0.1:1", "nowhere"} {
		var log testhost.Output
		err := run(context.Background(), append(slices.Clip(d.words), "--metrics", address), io.Discard, &log)
		if err == nil || !strings.Contains(err.Error(), address) || has(&log, "ready") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// daemon runs this program in a directory of its own.
type daemon struct {
	t             *testing.T
	dir           string
	words         []string
	notifications func(patience time.Duration) string // notifications to systemd
	log           testhost.Output
}

// newDaemon returns a daemon that is not started. In its configuration DIR stands for its directory.
func newDaemon(t *testing.T, config string) *daemon {
	t.Helper()
	needs.Root(t)
	d := &daemon{t: t, dir: short(t)}
	if err := os.WriteFile(d.path("config.toml"), []byte(strings.ReplaceAll(config, "DIR", d.dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.notifications = notifications(t, d.dir)
	d.words = []string{
		"--config", d.path("config.toml"), "--socket", d.path("control.sock"), "--run-dir", d.path("run"), "--state-dir", d.path("state"),
	}
	return d
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

func (d *daemon) client() *client.Client { return client.New(d.path("control.sock")) }

// begin starts it and returns when it is ready. stop ends it and waits.
func (d *daemon) begin(words ...string) (stop func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append(slices.Clip(d.words), words...), io.Discard, &d.log) }()
	if got := d.notifications(10 * time.Second); got != "READY=1" {
		d.t.Fatalf("%q: %s", got, d.log.String())
	}
	return func() {
		d.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			d.t.Fatal(err)
		}
	}
}

func has(log *testhost.Output, words ...string) bool {
	for line := range strings.Lines(log.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}
