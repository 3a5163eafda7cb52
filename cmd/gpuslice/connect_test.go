// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api/server"
)

// shortDir returns a directory for sockets. t.TempDir may be too long for their paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestUserConnectsWhereADaemonListens(t *testing.T) {
	dir := shortDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	control, err := server.Listen(path("control"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	users, err := server.ListenForUsers(path("users"))
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	for _, stale := range []string{"stale", "stale-too"} {
		left, err := server.ListenForUsers(path(stale))
		if err != nil {
			t.Fatal(err)
		}
		if err := left.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, control, users, may, want string
		forUsers                        bool
	}{
		{"both sockets may be used", "control", "users", "control users", "control", false},
		{"the users' socket may be used", "control", "users", "users", "users", true},
		{"no socket may be used", "control", "users", "", "control", false},
		{"the users' socket is a former daemon's", "control", "stale", "stale", "control", false},
		{"the control socket is missing, the users' is a former daemon's", "missing", "stale", "stale", "missing", false},
		{"the control socket is missing", "missing", "users", "users", "users", true},
		{"both sockets are a former daemon's", "stale-too", "stale", "stale", "stale", true},
	} {
		socket, forUsers := choose(path(c.control), path(c.users), func(path string) bool {
			return strings.Contains(" "+c.may+" ", " "+filepath.Base(path)+" ")
		})
		if socket != path(c.want) || forUsers != c.forUsers {
			t.Errorf("%s: %s, %v", c.name, socket, forUsers)
		}
	}
}

func TestTheConfigurationNamesTheSocket(t *testing.T) {
	dir := shortDir(t)
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte("[enforcer]\nsocket = \""+filepath.Join(dir, "missing")+"\"\n[sessions]\nsocket = \"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUSLICE_SOCKET", "")
	os.Unsetenv("GPUSLICE_SOCKET")
	if out, _, _ := cliRun("doctor", "--config", file); !strings.Contains(out, "no enforcer answers on "+filepath.Join(dir, "missing")) {
		t.Error(out)
	}
	if out, _, _ := cliRun("--socket", filepath.Join(dir, "other"), "doctor", "--config", file); !strings.Contains(out, "no enforcer answers on "+filepath.Join(dir, "other")) {
		t.Error(out)
	}
}

func TestProgramsOfRootsDirectoriesAreFound(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/ldconfig"); err != nil {
		t.Skip("requires /usr/sbin/ldconfig")
	}
	t.Setenv("PATH", t.TempDir())
	if path, err := lookPath("ldconfig"); err != nil || !strings.HasSuffix(path, "sbin/ldconfig") {
		t.Errorf("%s, %v", path, err)
	}
	if path, err := lookPath("no-such-program"); err == nil {
		t.Error(path)
	}
}
