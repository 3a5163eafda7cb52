// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const somebody = 8 // mail, which every host has

// usersHost is a host on which the sessions of user nobody may have 4 GiB together.
type usersHost struct {
	*host
	bin string
}

func newUsersHost(t *testing.T) *usersHost {
	t.Helper()
	t.Parallel()
	runc := runcPath(t)
	// The socket's path depends on the directory.
	h := &usersHost{host: &host{testhost.New(t, testhost.Options{Runtimes: []string{runc}}), runc}}
	h.Stop(unix.SIGTERM)
	file := must.Get(os.OpenFile(h.Config(), os.O_APPEND|os.O_WRONLY, 0))(h.T)
	_, err := fmt.Fprintf(file, "\n[sessions]\nsocket = %q\n[[sessions.limits]]\nuser = \"%d\"\nmax_vram = \"4G\"\nmax_sessions = 2\n", h.users(), nobody)
	h.Must(err)
	h.Must(file.Close())
	h.Start()
	h.bin = h.forNobody()
	h.Must(os.Chmod(filepath.Join(h.Dir, "fake"), 0o777))
	return h
}

func (h *usersHost) users() string { return filepath.Join(h.Dir, "run", "session.sock") }

// as returns a gpuslice command of a user with a separate simulated card.
func (h *usersHost) as(uid uint32, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.bin, "gpuslice"), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOG=" + filepath.Join(h.bin, "demo", "cuda_hog"), "GPUSLICE_SESSION_SOCKET=" + h.users(),
		"LD_LIBRARY_PATH=" + filepath.Join(h.bin, "fakecuda"), "FAKECUDA_STATE=" + filepath.Join(h.Dir, "fake", strconv.Itoa(int(uid)))}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// session runs a hog in a session of user nobody, and returns the session's id and token file.
func (h *usersHost) session(vram string, size uint64) (id, token string) {
	h.T.Helper()
	cmd := h.as(nobody, "run", "--vram", vram, "--", "sh", "-c", fmt.Sprintf("echo $GPUSLICE_TOKEN_FILE; exec $HOG %d", size))
	var said bytes.Buffer
	cmd.Stderr = &said
	out := must.Get(cmd.StdoutPipe())(h.T)
	h.Must(cmd.Start())
	h.T.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for range 2 {
		must.True(h.T, lines.Scan(), "the session said too little:", said.String())
		if token == "" {
			token = lines.Text()
		}
	}
	must.True(h.T, strings.HasPrefix(lines.Text(), fmt.Sprintf("holds %d of ", size)), "the hog says", lines.Text())
	text := must.Get(os.ReadFile(token))(h.T)
	id, _, err := api.ParseTokenFile(string(text))
	h.Must(err)
	return id, token
}

func output(cmd *exec.Cmd) (string, int) {
	out, _ := must.Printed(cmd)
	return out, cmd.ProcessState.ExitCode()
}

func TestAUserWithoutPrivilegesHasSessionsOfTheHostsEnforcer(t *testing.T) {
	h := newUsersHost(t)
	id, _ := h.session("3G", 2*gib)
	expect.True(t, strings.HasPrefix(id, fmt.Sprintf("u%d-run-", nobody)), "its id is", id)
	h.Eventually("it is counted by the host's enforcer", func() bool {
		s, err := h.Client.Slice(context.Background(), id)
		return err == nil && s.Session && len(s.Devices) == 1 && s.Devices[0].Used == 2*gib
	})
	for name, c := range map[string]struct {
		uid  uint32
		args []string
		want string
	}{
		"more than the operator allows": {nobody, []string{"run", "--vram", "2G", "--", "true"}, "sessions may have 4GiB together (max_vram) and have 3GiB"},
		"another user":                  {somebody, []string{"run", "--vram", "1G", "--", "true"}, "uid 8 may have no session on this host"},
		"a tenant":                      {nobody, []string{"run", "--vram", "1G", "--tenant", "rich", "--", "true"}, "accounted to tenant rich"},
		"somebody else's session":       {somebody, []string{"release", "--force", id}, "you have no session " + id},
		"what is no session's":          {nobody, []string{"set", id, "--vram", "4G"}, "the operator's, on the control socket"},
	} {
		out, code := output(h.as(c.uid, c.args...))
		if code == 0 || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, which does not say %q", name, code, out, c.want)
		}
	}
	if out, code := output(h.as(nobody, "inspect", strings.TrimPrefix(id, fmt.Sprintf("u%d-", nobody)))); code != 0 || !strings.Contains(out, id) {
		t.Errorf("inspect, by the name that its user typed: %d %s", code, out)
	}
	if out, code := output(h.as(nobody, "ps", "--format", "{{.User}} {{.Command}}")); code != 0 || !strings.HasPrefix(out, "nobody ") || !strings.Contains(out, "/gpuslice run --vram 3G -- sh -c echo $GPUSLICE_TOKEN_FILE; exec $HOG ") {
		t.Errorf("commands: %d %s", code, out)
	}
	if out, code := output(h.as(somebody, "ps")); code != 0 || strings.Contains(out, id) {
		t.Errorf("somebody's ps: %d %s", code, out)
	}
	if out, code := output(h.as(nobody, "limits", "--format", "{{.Limit}} {{.Given}} {{.Left}} {{.Sessions}}")); code != 0 || out != "4GiB 3GiB 1GiB 1 of 2\n" {
		t.Errorf("limits: %d %s", code, out)
	}
	if out, code := output(h.as(somebody, "limits")); code != 1 || !strings.Contains(out, "uid 8 may have no session on this host") {
		t.Errorf("somebody's limits: %d %s", code, out)
	}
	if out, code := output(h.as(nobody, "limits", "--user", "0")); code != 1 || !strings.Contains(out, "no other user's limits") {
		t.Errorf("limits of root: %d %s", code, out)
	}
	if out, code := output(h.as(nobody, "renew", id, "1h")); code != 0 {
		t.Errorf("renew: %d %s", code, out)
	}
	if out, code := output(h.as(nobody, "release", "--force", id)); code != 0 {
		t.Errorf("release: %d %s", code, out)
	}
	h.Eventually("the session has ended", h.IsGone(id))
}

func TestASessionWaitsForItsQuota(t *testing.T) {
	h := newUsersHost(t)
	id, _ := h.session("3G", gib)
	wait := func() (*exec.Cmd, *lines) {
		cmd, said := h.as(nobody, "run", "--vram", "2G", "--wait", "forever", "--", "echo", "it ran"), &lines{}
		cmd.Stdout, cmd.Stderr = said, said
		h.Must(cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		h.Eventually("it waits", func() bool {
			return strings.Contains(said.String(), "waiting for 2G of VRAM (--wait forever; Ctrl-C ends it): ") && strings.Contains(said.String(), "together (max_vram) and have 3GiB")
		})
		return cmd, said
	}
	interrupted, _ := wait()
	h.Must(interrupted.Process.Signal(unix.SIGINT))
	expect.Error(t, interrupted.Wait())
	all := must.Get(h.Client.Slices(context.Background()))(t)
	must.Len(t, all, 1, "slices beside the first one")

	waits, said := wait()
	if out, code := output(h.as(nobody, "release", "--force", id)); code != 0 {
		t.Fatalf("release: %d %s", code, out)
	}
	h.Must(waits.Wait())
	if text := said.String(); !strings.Contains(text, "the host's enforcer, after waiting for ") || !strings.HasSuffix(text, "it ran\n") || strings.Count(text, "waiting for 2G") != 1 {
		t.Errorf("it said %s", text)
	}
	if out, code := output(h.as(nobody, "run", "--vram", "5G", "--wait", "forever", "--", "true")); code != 125 || strings.Contains(out, "waiting") {
		t.Errorf("more than the limit: %d %s", code, out)
	}
}

func TestTheTokenJoinsTheSession(t *testing.T) {
	h := newUsersHost(t)
	id, token := h.session("3G", 1*gib)
	out, code := output(h.as(nobody, "run", "--join", token, "--", "sh", "-c", fmt.Sprintf("$HOG %d", 2*gib)))
	if code != 0 && !strings.Contains(out, "CUDA_ERROR_OUT_OF_MEMORY") || !strings.Contains(out, "slice "+id+", joined") {
		t.Errorf("a process that joined draws on the session's quota: exit code %d, %s", code, out)
	}
	// Another user cannot read the file, even with its path.
	out, code = output(h.as(somebody, "run", "--join", token, "--", "true"))
	if code != 125 || !strings.Contains(out, "permission denied") {
		t.Errorf("a stolen path: exit code %d, %s", code, out)
	}
	forged := filepath.Join(h.Dir, "public", "forged")
	h.Must(os.WriteFile(forged, []byte(id+" "+strings.Repeat("0", 64)+"\n"), 0o644))
	out, code = output(h.as(somebody, "run", "--join", forged, "--", "true"))
	if code != 125 || !strings.Contains(out, "no session "+id+" with that token") {
		t.Errorf("a forged token: exit code %d, %s", code, out)
	}
	// A user with an open descriptor of the file can join, within the session's quota.
	file := must.Get(os.Open(token))(h.T)
	defer file.Close()
	cmd := h.as(somebody, "run", "--join", "3", "--", "sh", "-c", fmt.Sprintf("id -u; $HOG %d & read line; kill $!", gib/2))
	cmd.ExtraFiles = []*os.File{file}
	in := must.Get(cmd.StdinPipe())(h.T)
	var said lines
	cmd.Stdout, cmd.Stderr = &said, &said
	h.Must(cmd.Start())
	h.Eventually("the enforcer counts what another user's process holds", func() bool {
		s, err := h.Client.Slice(context.Background(), id)
		return err == nil && len(s.Devices) == 1 && s.Devices[0].Used == gib+gib/2 && s.ProcessCount == 2
	})
	h.Eventually("the program prints its memory", func() bool {
		return strings.Contains(said.String(), strconv.Itoa(somebody)+"\n") && strings.Contains(said.String(), fmt.Sprintf("holds %d of %d\n", gib/2, 3*gib))
	})
	in.Close()
	_ = cmd.Wait()
	h.Eventually("the memory is released", func() bool {
		s, err := h.Client.Slice(context.Background(), id)
		return err == nil && s.Devices[0].Used == gib
	})
	// The token alone suffices to renew and end the session.
	given := filepath.Join(h.Dir, "public", "given")
	text := must.Get(os.ReadFile(token))(h.T)
	h.Must(os.WriteFile(given, text, 0o644))
	if out, code := output(h.as(somebody, "--token", given, "renew", id, "1h")); code != 0 {
		t.Errorf("renew: %d %s", code, out)
	}
	if out, code := output(h.as(somebody, "--token", given, "release", "--force", id)); code != 0 {
		t.Errorf("release: %d %s", code, out)
	}
	expect.True(t, !strings.Contains(h.Log.String(), strings.Fields(string(text))[1]), "the token is in the enforcer's log")
}

// The error names the group with access to the control socket.
func TestRefusedUserLearnsTheAllowedGroup(t *testing.T) {
	h := newUsersHost(t)
	h.Must(os.Chown(h.Socket(), 0, 1)) // "daemon" on Linux
	h.Must(os.Chmod(h.Socket(), 0o660))
	want := "gpuslice: you may not use the enforcer's socket " + h.Socket() + ": root may, and members of the group daemon: `sudo usermod -aG daemon USER`, then log in again. [[sessions.limits]] in gpusliced's configuration gives other users sessions, and `gpuslice run` works without gpusliced\n"
	for _, args := range []string{"ps", "devices", "events", "inspect x", "set x --vram 1G", "pool ls", "release x", "recommend"} {
		cmd := h.as(somebody, append([]string{"--socket", h.Socket()}, strings.Fields(args)...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || said.String() != want {
			t.Errorf("%s: %v, %s", args, err, said.String())
		}
	}
}

type lines = testhost.Output

func TestWithoutLimitsThereIsNoSocketForUsers(t *testing.T) {
	h := newHost(t)
	if _, err := os.Lstat(filepath.Join(h.Dir, "run", "session.sock")); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}
