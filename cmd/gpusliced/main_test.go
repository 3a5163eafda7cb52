// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
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
	for _, args := range [][]string{{"start"}, {"--no-such"}, {"--log-level", "loud"}} {
		var said bytes.Buffer
		err := run(context.Background(), append([]string{"--config", "/nonexistent"}, args...), io.Discard, &said)
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
