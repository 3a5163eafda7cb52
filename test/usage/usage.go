// SPDX-License-Identifier: Apache-2.0

// Package usage measures a process's use of the host, for tests and benchmarks of the daemons.
package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is a process's use of the host.
type Usage struct {
	Resident uint64        // bytes
	CPU      time.Duration // of its present threads
}

// Of returns the present use of a process.
func Of(pid int) (Usage, error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	text, err := os.ReadFile(proc + "/statm")
	if err != nil {
		return Usage{}, err
	}
	pages, err := number(text, 1)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Resident: pages * uint64(os.Getpagesize())}
	// The scheduler's own sum, in nanoseconds: ticks of 10 ms miss shorter runs.
	tasks, err := filepath.Glob(proc + "/task/*/schedstat")
	if err != nil {
		return Usage{}, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has exited
		}
		if err != nil {
			return Usage{}, err
		}
		ns, err := number(text, 0)
		if err != nil {
			return Usage{}, err
		}
		u.CPU += time.Duration(ns)
	}
	return u, nil
}

func number(text []byte, field int) (uint64, error) {
	fields := strings.Fields(string(text))
	if len(fields) <= field {
		return 0, fmt.Errorf("%q has no field %d", text, field)
	}
	return strconv.ParseUint(fields[field], 10, 64)
}
