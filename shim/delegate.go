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

// reportName is the file in the bundle to which the hook writes its error.
const reportName = ".gpuslice-error"

// hidesHooks reports whether a runtime discards the output of its hooks and shows only "exit code: 1". crun does, unless an
// annotation of its own names a file.
func hidesHooks(runtime string) bool {
	return strings.Contains(filepath.Base(runtime), "crun")
}

// listenPID is set for a runtime that receives sockets from systemd. runc accepts them only with that pid, so it must be executed
// in this process.
const listenPID = "LISTEN_PID"

// Delegate executes the low-level runtime in place of this process, and returns only if that fails. If the runtime creates a
// container from bundle and the hook reports errors to a file, Delegate waits for the runtime instead and returns its exit status
// and the hook's error.
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

// wait runs the runtime as a child and returns its exit status. The container's init becomes a child of the engine as usual: this
// process, which is no subreaper, outlives the runtime.
func wait(runtime string, args, env []string) (status int, err error) {
	// Forward the engine's signals. SIGKILL cannot be forwarded: the kernel kills the child when the thread that started it ends,
	// hence the lock.
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

// HookSaid returns the error that the hook reported for bundle, or nil.
func (r *Runtime) HookSaid(bundle string) error {
	if !r.reports {
		return nil
	}
	path := filepath.Join(bundle, reportName)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // the hook reported nothing
	}
	defer file.Close()
	defer os.Remove(path)
	text, _ := io.ReadAll(io.LimitReader(file, 4096))
	if len(text) == 0 {
		return nil
	}
	return errors.New(strings.TrimPrefix(strings.TrimSpace(string(text)), "gpuslice: "))
}
