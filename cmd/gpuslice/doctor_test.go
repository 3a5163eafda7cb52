// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/doctor"
)

// forSessions is the enforcer on the users' socket. It answers Info only.
type forSessions struct{ server.UserService }

func (forSessions) Info(context.Context) (api.Info, error) {
	return api.Info{Version: api.Version, Truth: "nvml"}, nil
}

func TestTheDoctorNamesTheSocketThatItAsked(t *testing.T) {
	if _, err := os.Stat(api.DefaultSocket); err == nil || os.Getenv("GPUSLICE_SOCKET") != "" {
		t.Skip("this host has a control socket, which goes before the users'")
	}
	dir, err := os.MkdirTemp("", "gs") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- server.NewForUsers(forSessions{}, slog.New(slog.DiscardHandler)).Serve(ctx, l)
	}()
	out, _, _ := cliRun("--session-socket", socket, "doctor", "--json")
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var findings []doctor.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for check, want := range map[string]doctor.Level{"enforcer": doctor.OK, "enforce": doctor.Skip} {
		if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
			return f.Check == check && f.Level == want && strings.Contains(f.Message, socket)
		}) {
			t.Errorf("%s: %+v", check, findings)
		}
	}
}

func TestDoctorReadsTheGivenConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[enforcer]\nsokcet = \"/x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, code := cliRun("doctor", "--config", file); code != 1 || !strings.Contains(out, file+":2: there is no key enforcer.sokcet: did you mean enforcer.socket?") {
		t.Errorf("%d: %s", code, out)
	}
}

func TestTheDoctorKnowsWhichEnginesHaveTheRuntime(t *testing.T) {
	root := imageWith(t, `{"debug": true}`)
	expectRuntime := func(registered, byDefault bool) {
		t.Helper()
		found := enginesHere(root)
		i := slices.IndexFunc(found, func(e doctor.Engine) bool { return e.Name == "docker" })
		if i < 0 || found[i].Registered != registered || found[i].Default != byDefault || found[i].Err != nil {
			t.Errorf("%+v", found)
		}
	}
	expectRuntime(false, false)
	for _, step := range [][]string{{"install", "docker"}, {"install", "docker", "--set-as-default"}} {
		if _, said, code := cliRun(append(step, "--root", root)...); code != 0 {
			t.Fatal(said)
		}
		expectRuntime(true, len(step) == 3)
	}
}
