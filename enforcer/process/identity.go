// SPDX-License-Identifier: Apache-2.0

// Package process tells one process from another, and when it is dead.
//
// A pid alone is no identity: the kernel hands it out again. This package owns the three things that
// make one: a pidfd (the kernel's own handle of one process), the start time (unique together with
// the pid within a boot), and the boot id. Whoever keeps a pid keeps a Handle or an Identity with it.
//
// It must never act on a bare pid: every signal goes through a pidfd, and everything read under
// /proc/PID counts only if the pidfd says afterwards that the process was still the same.
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

// ErrDead says that the process is dead, or was already when it was asked for.
var ErrDead = errors.New("the process is dead")

// ErrHidden says that the process is alive, and that /proc does not show it to this user.
var ErrHidden = errors.New("/proc does not show the process: it is mounted with hidepid, which hides from a user what is not theirs or is not " +
	"dumpable (mount it without, or have root run gpusliced)")

// Identity is what tells a process from all others of this boot.
type Identity struct {
	PID   int    // in the pid namespace of the caller
	Start uint64 // clock ticks from boot to its start; survives execve, by any thread
	NSPID int    // its pid in its own pid namespace, what it sees itself
	PIDNS uint64 // inode of that namespace; Unreadable and the pid if that cannot be read
}

// Unreadable marks a PIDNS that is no inode: no two processes have the same, so none takes the other's pids for its own.
const Unreadable = 1 << 63

// BootID names this boot of the kernel. Start times, pidfds and cgroup inodes of another boot mean nothing.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}

// StartTime reads the start time of the process that has pid now.
func StartTime(pid int) (uint64, error) {
	s, err := readStat(pid)
	return s.start, err
}

// identify reads the identity of the process that has pid now. The caller holds a pidfd and checks it afterwards.
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

// namespace reads the pid namespace of a process. Only root may read that of a program that made itself non-dumpable (prctl(2)); all users
// may read whether it is nested below that of /proc, in which the caller is, too.
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
	ppid  int
	start uint64
}

func readStat(pid int) (stat, error) {
	guard.MayWait("a process's files")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, vanished(pid, err)
	}
	return parseStat(b)
}

// parseStat reads fields 4 and 22 of proc(5) stat. Field 2, the command in parentheses, is whatever
// the program likes to be called: "a) R 1 (b" is a fine name. Only what follows the last ')' is ours to split.
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
	var s stat
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

// OwnedBy says whether all of a process's user ids are uid, its real, effective, saved and filesystem ones: one that runs a setuid program
// has others, though it descends from the user's processes. One that is gone is nobody's.
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

// Groups are all that a process is in, its own first; none of one that is gone.
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
			numbers = numbers[1:2] // real, effective, saved, of the filesystem
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

// parseNSPID reads the last number of the line NSpid, the pid in the innermost namespace, and whether there are others: namespaces from that
// of /proc down. A program's name cannot forge the line: the kernel escapes a newline in Name.
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

// vanished turns the two ways in which /proc says that a process is gone (no directory any more; reading from
// the directory of an exited process) into ErrDead.
func vanished(pid int, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, ErrDead)
	}
	return err
}
