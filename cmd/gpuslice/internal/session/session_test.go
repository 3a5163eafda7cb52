// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
)

// A session takes over its process, so each test runs it in a copy of the test program.
const helper = "GPUSLICE_SESSION_TEST"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helper); dir != "" {
		os.Unsetenv(helper)
		os.Exit(runHelper(dir))
	}
	os.Exit(m.Run())
}

type recorder struct{ dir string }

func (r recorder) Register(_ context.Context, q api.RegisterRequest) (api.RegisterReply, error) {
	if q.Quotas == nil {
		return api.RegisterReply{}, api.Errorf(api.CodeQuotaExceeded, "the card has 1 GiB left")
	}
	line := strings.Join([]string{q.ID, strconv.Itoa(q.PID), strconv.FormatBool(q.Session)}, " ")
	return api.RegisterReply{Slice: api.Slice{ID: q.ID, Generation: 7}, Dir: r.dir, Library: "/lib/gpuslice.so"},
		os.WriteFile(filepath.Join(r.dir, "registered"), []byte(line), 0o600)
}

func (r recorder) Release(_ context.Context, id string, generation uint64, _ bool) (api.Slice, error) {
	return api.Slice{}, os.WriteFile(filepath.Join(r.dir, "released"), []byte(id+" "+strconv.FormatUint(generation, 10)), 0o600)
}

func (r recorder) Join(_ context.Context, id string, q api.JoinRequest) (api.RegisterReply, error) {
	return api.RegisterReply{}, os.WriteFile(filepath.Join(r.dir, "joined"), []byte(id+" "+strconv.Itoa(q.PID)), 0o600)
}

func runHelper(dir string) int {
	s := Session{
		Enforcer: recorder{dir},
		Request:  api.RegisterRequest{ID: "s1"},
		// The loader would print an error for a missing library in every command.
		Library: func(string) (string, error) { return "", nil },
		Command: os.Args[1:],
		Env:     os.Environ(),
	}
	if os.Getenv("REFUSE") == "" {
		s.Request.Quotas = []api.Quota{{Device: api.AllDevices, Bytes: 1}}
	}
	code, err := s.Run(context.Background())
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		var e *Error
		errors.As(err, &e)
		return e.Code
	}
	return code
}

func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), helper+"="+dir)
	return cmd
}

func TestExitCodeIsTheCommandsOwn(t *testing.T) {
	notExecutable := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notExecutable, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command []string
		want    int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 3"}, 3},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9},
		{[]string{"sh", "-c", "kill -15 $$"}, 128 + 15},
		{[]string{"no-such-command-here"}, ExitNotFound},
		{[]string{"/no/such/file"}, ExitNotFound},
		{[]string{notExecutable}, ExitNotRunnable},
	} {
		cmd := command(t, t.TempDir(), c.command...)
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.want {
			t.Errorf("%q: exit code %d, want %d", c.command, got, c.want)
		}
	}
}

func TestSliceIsReleasedAfterTheLastDescendant(t *testing.T) {
	dir := t.TempDir()
	// The command leaves an orphan, which checks that the slice still exists after its parent has ended.
	cmd := command(t, dir, "sh", "-c", `(sleep 0.3; ls `+dir+` >`+dir+`/seen) & exit 4`)
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 4 {
		t.Errorf("exit code %d, want the command's 4", got)
	}
	seen, err := os.ReadFile(filepath.Join(dir, "seen"))
	if err != nil {
		t.Fatal("the orphan was not waited for:", err)
	}
	if bytes.Contains(seen, []byte("released")) {
		t.Error("the slice was released while a descendant lived")
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "released")); string(got) != "s1 7" {
		t.Errorf("released %q, want the registered id and generation", got)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "registered"))
	if want := "s1 " + strconv.Itoa(cmd.Process.Pid) + " true"; string(got) != want {
		t.Errorf("registered %q, want %q", got, want)
	}
}

func TestRefusedSliceRunsNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := command(t, dir, "touch", filepath.Join(dir, "ran"))
	cmd.Env = append(cmd.Env, "REFUSE=1")
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != ExitFailed {
		t.Errorf("exit code %d, want %d", got, ExitFailed)
	}
	if !strings.Contains(string(out), "the card has 1 GiB left") {
		t.Errorf("the enforcer's sentence is not in %q", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command ran without a slice")
	}
}

func TestSliceHoldsNoSecondOne(t *testing.T) {
	cmd := command(t, t.TempDir(), "true")
	cmd.Env = append(cmd.Env, api.DirEnv+"=/run/gpuslice/slices/outer/bind")
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != ExitFailed {
		t.Errorf("exit code %d, want %d: a process could leave its slice by asking for a larger one",
			cmd.ProcessState.ExitCode(), ExitFailed)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGINT} {
		if signal.Ignored(sig) { // ignored by the parent of the tests, as by nohup: then the command would ignore it, too
			signal.Notify(make(chan os.Signal, 1), sig)
		}
		name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
		cmd := command(t, t.TempDir(), "sh", "-c", `trap "exit 5" `+name+`; echo ready; while :; do sleep 0.05; done`)
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // no terminal
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		if got := cmd.ProcessState.ExitCode(); got != 5 {
			t.Errorf("SIG%s: exit code %d, want the trap's 5", name, got)
		}
	}
}

func TestAnIgnoredSIGCHLDLosesNoExitCode(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A shell passes ignored signals on, as do supervisors that ignore SIGCHLD.
	cmd := exec.Command("sh", "-c", `trap "" CHLD; exec "$0" sh -c "exit 6"`, self)
	cmd.Env = append(os.Environ(), helper+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 6 {
		t.Errorf("exit code %d, want the command's 6", got)
	}
}

func TestStandardStreamsAreTheCommandsOwn(t *testing.T) {
	cmd := command(t, t.TempDir(), "sh", "-c", "cat; echo problem >&2")
	cmd.Stdin = strings.NewReader("one\ntwo")
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil || out.String() != "one\ntwo" || problems.String() != "problem\n" {
		t.Errorf("%v, output %q, errors %q", err, &out, &problems)
	}
}

// terminal creates a pseudo-terminal. Bytes written to keyboard are typed on tty.
func terminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("requires pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}

func TestTheTerminalIsTheCommandsOwn(t *testing.T) {
	keyboard, tty := terminal(t)
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// The script counts the interrupts of one key; the pause is there to catch a second one.
	script := `n=0; trap 'n=$((n+1))' INT; test -t 0 && test -t 1 && test -t 2 && tty >` + dir + `/tty; echo ready
		while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; exit $((40 + n))`
	cmd := command(t, dir, "sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	shown := ""
	for b := make([]byte, 256); !strings.Contains(shown, "ready"); {
		n, err := keyboard.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		shown += string(b[:n])
	}
	if _, err := keyboard.Write([]byte{3}); err != nil { // ^C
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 41 {
		t.Errorf("exit code %d, want 41: one key is one interrupt", got)
	}
	if name, _ := os.ReadFile(filepath.Join(dir, "tty")); strings.TrimSpace(string(name)) != tty.Name() {
		t.Errorf("its terminal is %q, want %s", name, tty.Name())
	}
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal's settings are %+v (%v), want %+v as before", after, err, before)
	}
}

func TestSignalAfterTheCommandsExitReachesItsDescendants(t *testing.T) {
	dir := t.TempDir()
	cmd := command(t, dir, "sh", "-c", `echo $$ >`+dir+`/pid; sh -c 'trap "touch `+dir+`/told; exit" TERM; touch `+dir+`/there; while :; do sleep 0.05; done' & exit 3`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	for exited := false; !exited; time.Sleep(5 * time.Millisecond) {
		_, err := os.Stat(filepath.Join(dir, "there"))
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		exited = err == nil && pid > 0 && unix.Kill(pid, 0) == unix.ESRCH
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	_ = cmd.Wait()
	if _, err := os.Stat(filepath.Join(dir, "told")); err != nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("exit code %d, %v: want the command's 3, and its orphan signalled", cmd.ProcessState.ExitCode(), err)
	}
}

func TestTokenFileIsNamedOnlyIfItExists(t *testing.T) {
	for _, there := range []bool{true, false} {
		dir := t.TempDir()
		file := filepath.Join(dir, api.TokenName)
		if there {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			file = ""
		}
		cmd := command(t, dir, "sh", "-c", `echo "$`+api.TokenEnv+`"`)
		cmd.Env = append(cmd.Env, api.TokenEnv+"=/of/another/session")
		if out, err := cmd.Output(); err != nil || string(out) != file+"\n" {
			t.Errorf("%v: %q, %v", there, out, err)
		}
	}
}

func TestEnvironmentHasTheInterceptorFirst(t *testing.T) {
	got := environment([]string{"A=1", "LD_PRELOAD=/x.so", "GPUSLICE_DIR=/old", "GPUSLICE_SESSION=old", "B=2"}, "/l.so", "/dir", "s1")
	want := []string{"A=1", "B=2", "LD_PRELOAD=/l.so:/x.so", "GPUSLICE_DIR=/dir", "GPUSLICE_SESSION=s1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = environment([]string{"LD_PRELOAD="}, "/l.so", "/dir", "s1")
	if want := []string{"LD_PRELOAD=/l.so", "GPUSLICE_DIR=/dir", "GPUSLICE_SESSION=s1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A profiler that is preloaded before gpuslice follows the command through the C library's functions that start programs.
func TestAToolAroundTheSessionFollowsTheCommand(t *testing.T) {
	dir := t.TempDir()
	source, library := filepath.Join(dir, "tool.c"), filepath.Join(dir, "tool.so")
	if err := os.WriteFile(source, []byte(`
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <unistd.h>

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *f, const posix_spawnattr_t *a, char *const argv[], char *const envp[])
{
	int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]) =
		(int (*)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]))dlsym(RTLD_NEXT, "posix_spawn");

	if (write(1, "followed\n", 9) != 9)
		abort();
	return next(pid, path, f, a, argv, envp);
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	cmd := command(t, dir, "echo", "done")
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	out, err := cmd.Output()
	if err != nil || string(out) != "followed\ndone\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// Go raises its own limit of open files, which the command must not inherit.
func TestTheCommandHasTheLimitOfOpenFilesThatItWasGiven(t *testing.T) {
	dir := t.TempDir()
	inner := command(t, dir, "sh", "-c", "ulimit -Sn")
	outer := exec.Command("sh", append([]string{"-c", `ulimit -Sn 123; exec "$@"`, "sh"}, inner.Args...)...)
	outer.Env = inner.Env
	out, err := outer.Output()
	if err != nil || string(out) != "123\n" {
		t.Errorf("%q, %v", out, err)
	}
}
