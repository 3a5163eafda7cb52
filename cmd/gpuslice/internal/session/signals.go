// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals to forward. SIGTSTP, SIGTTIN and SIGTTOU are not caught: the terminal sends them to the whole process
// group, and this process should stop with the command.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGCONT, unix.SIGWINCH, unix.SIGCHLD,
}

// wait forwards signals until every descendant has ended, and returns the exit code of pid.
func wait(pid int, signals <-chan os.Signal) (int, error) {
	code, running := 0, true
	for {
		// Reap all exited children. The next SIGCHLD repeats this.
		for {
			var status unix.WaitStatus
			child, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.ECHILD) {
				return code, nil
			}
			if err != nil {
				return 0, failed(ExitFailed, "wait for the command: %w", err)
			}
			if child == 0 {
				break
			}
			if child == pid {
				code, running = exitCode(status), false
			}
		}
		sig := (<-signals).(syscall.Signal)
		if sig == unix.SIGCHLD || fromTerminal(sig) {
			continue
		}
		if running {
			_ = unix.Kill(pid, sig) // it may have exited since
			continue
		}
		// The command has ended; forward to its orphans, which are now children of this process.
		for _, child := range children() {
			_ = unix.Kill(child, sig)
		}
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// fromTerminal reports whether the command has received this signal already: the terminal sends it to each process of the
// foreground group.
func fromTerminal(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
	default:
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false // no terminal: the signal was sent to this process only
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// children returns the children of this process, regardless of the thread that started or adopted them.
func children() []int {
	var pids []int
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		list, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
