// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// maxCgroups bounds a walk: a container that may create cgroups can create very many.
const maxCgroups = 16384

// errStop ends a walk early.
var errStop = errors.New("stop")

// PIDs returns the processes in p and below it, in ascending order. Processes and cgroups that vanish during the walk are left out. It
// returns none if the cgroup is gone, or its path was reused.
func PIDs(p Path) ([]int, error) {
	guard.MayWait("a cgroup's file")
	var pids []int
	err := eachProcess(p, func(pid int) error {
		pids = append(pids, pid)
		return nil
	})
	slices.Sort(pids)
	return slices.Compact(pids), err // a process that moves during the walk may be listed twice
}

// Populated reports whether p, or a cgroup below it, has a process. It is false if the cgroup is gone, or its path was reused.
func Populated(p Path) (bool, error) {
	guard.MayWait("a cgroup's file")
	if !p.V2 {
		return populatedV1(p)
	}
	if ok, err := exists(p); !ok || err != nil {
		return false, err
	}
	b, err := os.ReadFile(filepath.Join(p.Dir(), "cgroup.events"))
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether %s is empty: %w", p, err)
	}
	for line := range bytes.Lines(b) {
		switch string(bytes.TrimSpace(line)) {
		case "populated 0":
			return false, nil
		case "populated 1":
			return true, nil
		}
	}
	return false, fmt.Errorf("cannot tell whether %s is empty: no populated line in cgroup.events: %.80q", p, b)
}

// exists reports whether p exists and is the same cgroup.
func exists(p Path) (bool, error) {
	ino, err := inode(p.Dir())
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether %s exists: %w", p, err)
	}
	return p.Inode == 0 || ino == p.Inode, nil
}

// eachProcess calls f for each process in p and below, until f returns an error.
func eachProcess(p Path, f func(pid int) error) error {
	if ok, err := exists(p); !ok || err != nil {
		return err
	}
	cgroups := 0
	err := walk(p.Dir(), func(dir int) error {
		if cgroups++; cgroups > maxCgroups {
			return fmt.Errorf("more than %d cgroups", maxCgroups)
		}
		return readProcs(dir, f)
	})
	if errors.Is(err, errStop) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list the processes of %s: %w", p, err)
	}
	return nil
}

// walk calls f for a directory and all below it, until f returns an error. It leaves out directories that vanish. It moves from directory
// to directory, with one descriptor: a container may nest cgroups deeper than the longest path, and deeper than there are descriptors.
func walk(top string, f func(dir int) error) error {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := unix.Open(top, flags, 0)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	move := func(name string) error {
		next, err := unix.Openat(dir, name, flags, 0)
		if err == nil {
			unix.Close(dir)
			dir = next
		}
		return err
	}
	var below [][]string // names still to visit, in the directory and in each above it
	for {
		if err := f(dir); err != nil {
			return err
		}
		names, err := directories(dir)
		if err != nil {
			return err
		}
		below = append(below, names)
		for moved := false; !moved; {
			last := len(below) - 1
			if len(below[last]) == 0 {
				if below = below[:last]; last == 0 {
					return nil
				}
				if err := move(".."); err != nil {
					return err
				}
				continue
			}
			name := below[last][0]
			below[last] = below[last][1:]
			if err := move(name); err == nil {
				moved = true
			} else if !isGone(err) {
				return err
			}
		}
	}
}

// directories returns the names of the directories in an open directory, or none if it was removed.
func directories(dir int) (names []string, err error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), ".")
	defer file.Close()
	entries, err := file.ReadDir(-1)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if isGone(err) {
		err = nil
	}
	return names, err
}

func readProcs(dir int, f func(pid int) error) error {
	const file = "cgroup.procs"
	fd, err := unix.Openat(dir, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	r := os.NewFile(uintptr(fd), file)
	defer r.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if pid == 0 {
			continue // outside of the reader's pid namespace
		}
		if err := f(pid); err != nil {
			return err
		}
	}
	// A threaded cgroup lists no processes: the threaded domain above it lists them.
	if err := lines.Err(); !isGone(err) && !errors.Is(err, syscall.EOPNOTSUPP) {
		return err
	}
	return nil
}

// isGone reports whether err means that a cgroup was removed, before or after its file was opened.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
