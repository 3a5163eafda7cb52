// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// reportName is a file in the bundle to which the hook writes its sentence.
const reportName = ".gpuslice-error"

// hidesHooks says whether a runtime throws away what its hooks write. crun does (it opens /dev/null for them unless an
// annotation of its own names a file), and would leave the operator with "exit code: 1".
func hidesHooks(runtime string) bool {
	return strings.Contains(filepath.Base(runtime), "crun")
}

// listenPID is in the environment of a runtime that gets sockets by systemd's protocol: runc takes them only if it has that
// pid, and so has to be executed.
const listenPID = "LISTEN_PID"

// Delegate has the low-level runtime carry out a command line. It returns only if that cannot be executed, or was
// waited for because it makes a container of bundle; then with its exit status, and what the hook says.
func (r *Runtime) Delegate(args []string, bundle string) (status int, err error) {
	env := append(os.Environ(), ActiveEnv+"=1")
	if r.reports && bundle != "" {
		status, err = wait(r.Low, args, env)
		if status == 0 || err != nil {
			return status, err
		}
		return status, r.HookSaid(bundle)
	}
	err = unix.Exec(r.Low, append([]string{r.Low}, args...), env)
	return 1, fmt.Errorf("execute %s: %w", r.Low, err)
}

// wait runs the runtime as a child, with all that is open here, and returns its exit status. The container's init is not our
// child but becomes the engine's, as if the runtime had been executed: its parent exits before we do, and we are no subreaper.
func wait(runtime string, args, env []string) (status int, err error) {
	// What an engine sends us is for the runtime. SIGKILL cannot be passed on: the kernel kills the child when
	// the thread that started it ends, hence the lock.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	child, err := os.StartProcess(runtime, append([]string{runtime}, args...), &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("execute %s: %w", runtime, err)
	}
	go func() {
		for s := range signals {
			child.Signal(s)
		}
	}()
	state, err := child.Wait()
	if err != nil {
		return 1, fmt.Errorf("wait for %s: %w", runtime, err)
	}
	if state.Success() {
		return 0, nil
	}
	status = state.ExitCode()
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		status = 128 + int(w.Signal())
	}
	return status, nil
}

// HookSaid is what the hook had to say about the container that could not be made of bundle; nil if that was nothing.
func (r *Runtime) HookSaid(bundle string) error {
	if !r.reports {
		return nil
	}
	path := filepath.Join(bundle, reportName)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // the runtime failed without us
	}
	defer file.Close()
	defer os.Remove(path)
	text, _ := io.ReadAll(io.LimitReader(file, 4096))
	if len(text) == 0 {
		return nil
	}
	return errors.New(strings.TrimPrefix(strings.TrimSpace(string(text)), "gpuslice: "))
}
