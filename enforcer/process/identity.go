// SPDX-License-Identifier: Apache-2.0

// Package process identifies processes, and reports their death.
//
// A pid alone is no identity: the kernel reuses it. The package combines three things: a pidfd (the kernel's handle on one process), the
// start time (unique together with the pid until reboot), and the boot id. Code that stores a pid stores a Handle or an Identity with it.
//
// The package must never act on a bare pid. Every signal goes through a pidfd, and data read from /proc/PID counts only if the pidfd
// confirms afterwards that the process is still the same.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// ErrDead means that the process has exited.
var ErrDead = errors.New("the process is dead")

// ErrHidden means that the process is alive, and that /proc does not show it to this user.
var ErrHidden = errors.New("/proc does not show the process: it is mounted with hidepid, which hides from a user what is not theirs or is not " +
	"dumpable (mount it without, or have root run gpusliced)")

// Identity identifies a process until reboot.
type Identity struct {
	PID   int    // in the caller's pid namespace
	Start uint64 // clock ticks from boot to the start of the process; unchanged by execve of any thread
	NSPID int    // its pid in its own pid namespace
	PIDNS uint64 // inode of that namespace; Unreadable and the pid if it cannot be read
}

// Unreadable marks a PIDNS that is not an inode. It differs for each process, so that none matches the pids of another namespace.
const Unreadable = 1 << 63

// BootID returns the kernel's boot id. Start times, pidfds and cgroup inodes of another boot are meaningless.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}

// StartTime returns the start time of the process with the given pid.
func StartTime(pid int) (uint64, error) {
	s, err := readStat(pid)
	return s.start, err
}

// identify reads the identity of the process with the given pid. The caller holds a pidfd, and checks it afterwards.
func identify(pid int) (Identity, error) {
	s, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	nspid, nested, err := readNSPID(pid)
	if err != nil {
		return Identity{}, err
	}
	ns, err := namespace(pid, nested)
	if err != nil {
		return Identity{}, vanished(pid, err)
	}
	return Identity{PID: pid, Start: s.start, NSPID: nspid, PIDNS: ns}, nil
}

// namespace returns the inode of a process's pid namespace. Only root may read it for a program that made itself non-dumpable (prctl(2)).
// All users may read whether it is nested below the namespace of /proc, which is also the caller's.
func namespace(pid int, nested bool) (uint64, error) {
	ns, err := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err == nil {
		return ns.Sys().(*syscall.Stat_t).Ino, nil
	}
	if !errors.Is(err, os.ErrPermission) {
		return 0, err
	}
	if _, callerNested, err := readNSPID(os.Getpid()); err == nil && !nested && !callerNested {
		return PIDNamespace()
	}
	return Unreadable | uint64(pid), nil
}

type stat struct {
	state string // one letter
	ppid  int
	start uint64
}

// Stopped reports whether a process is stopped by a signal or a debugger. Such a process answers nothing.
func Stopped(pid int) bool {
	s, err := readStat(pid)
	return err == nil && (s.state == "T" || s.state == "t")
}

func readStat(pid int) (stat, error) {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, vanished(pid, err)
	}
	return parseStat(b)
}

// parseStat reads fields 3, 4 and 22 of proc(5) stat. Field 2, the command in parentheses, is any string that the program chooses, such as "a)
// R 1 (b". Only the text after the last ')' is split.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("/proc/PID/stat has no command: %.80q", b)
	}
	fields := strings.Fields(string(b[i+1:])) // fields[0] is field 3
	const ppid, start = 4 - 3, 22 - 3
	if len(fields) <= start {
		return stat{}, fmt.Errorf("/proc/PID/stat has %d fields after the command: 20 are needed", len(fields))
	}
	s := stat{state: fields[0]}
	var err error
	if s.ppid, err = strconv.Atoi(fields[ppid]); err != nil {
		return stat{}, fmt.Errorf("/proc/PID/stat, parent: %w", err)
	}
	if s.start, err = strconv.ParseUint(fields[start], 10, 64); err != nil {
		return stat{}, fmt.Errorf("/proc/PID/stat, start time: %w", err)
	}
	return s, nil
}

func readNSPID(pid int) (nspid int, nested bool, err error) {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false, vanished(pid, err)
	}
	return parseNSPID(b)
}

// OwnedBy reports whether all of a process's user ids (real, effective, saved and filesystem) are uid. A setuid program has others, even if
// it descends from the user's processes. It is false for an exited process.
func OwnedBy(pid int, uid uint32) bool {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && ownedBy(b, uid)
}

func ownedBy(status []byte, uid uint32) bool {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			uids := strings.Fields(rest)
			return len(uids) == 4 && !slices.ContainsFunc(uids, func(s string) bool { return s != strconv.FormatUint(uint64(uid), 10) })
		}
	}
	return false
}

// Groups returns the groups of a process, its effective group first, or none if it has exited.
func Groups(pid int) (groups []uint32) {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		rest, own := strings.CutPrefix(line, "Gid:")
		numbers := strings.Fields(rest)
		switch {
		case own && len(numbers) == 4:
			numbers = numbers[1:2] // real, effective, saved, filesystem
		case !own && strings.HasPrefix(line, "Groups:"):
			numbers = strings.Fields(strings.TrimPrefix(line, "Groups:"))
		default:
			continue
		}
		for _, number := range numbers {
			if n, err := strconv.ParseUint(number, 10, 32); err == nil {
				groups = append(groups, uint32(n))
			}
		}
	}
	return groups
}

// parseNSPID reads the line NSpid: the pid in the innermost namespace, which is the last number, and whether there are others. The numbers
// are of the namespaces from that of /proc down. A program's name cannot forge the line: the kernel escapes newlines in Name.
func parseNSPID(b []byte) (nspid int, nested bool, err error) {
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		pids := strings.Fields(rest)
		if len(pids) == 0 {
			break
		}
		n, err := strconv.Atoi(pids[len(pids)-1])
		if err != nil {
			return 0, false, fmt.Errorf("/proc/PID/status, NSpid: %w", err)
		}
		return n, len(pids) > 1, nil
	}
	return 0, false, errors.New("/proc/PID/status has no NSpid: a kernel with pid namespaces (CONFIG_PID_NS) is needed")
}

// vanished converts the two errors of /proc for an exited process (no directory, or ESRCH for an open one) into ErrDead.
func vanished(pid int, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, ErrDead)
	}
	return err
}
