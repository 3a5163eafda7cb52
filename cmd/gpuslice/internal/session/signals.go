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

// forwarded are the signals that are handed on. SIGTSTP, SIGTTIN and SIGTTOU are not caught: the
// terminal sends them to the whole process group, and stopping with the command is right.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGCONT, unix.SIGWINCH, unix.SIGCHLD,
}

// wait forwards signals until every descendant is gone, and returns the exit code of pid.
func wait(pid int, signals <-chan os.Signal) (int, error) {
	code, running := 0, true
	for {
		// Reap all that is there; SIGCHLD says when to look again.
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
			_ = unix.Kill(pid, sig) // it may have died since
			continue
		}
		// The command is gone; what it left behind has become our children.
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

// fromTerminal says whether the command has had this signal already: what a key at the terminal
// causes goes to each process of the foreground group, the command among them.
func fromTerminal(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
	default:
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false // no terminal: somebody sent it to us alone
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// children of this process, whichever of its threads started or adopted them.
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
