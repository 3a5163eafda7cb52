// SPDX-License-Identifier: Apache-2.0

package checkpoint

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include "native.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

// childArg is the first argument of a child, before the action, the pid and the start time.
const childArg = "checkpoint-child"

// lockFD is the descriptor of the lock file in a child.
const lockFD = 3

// IsChild reports whether this process was started to make one checkpoint call (see Child).
func IsChild(args []string) bool { return len(args) == 5 && args[1] == childArg }

// Child makes one call to the driver, after earlier calls on the same pid have ended, and prints the answer as a line of JSON. It runs in a process
// of its own, since a call may hang. The answer includes an error of the driver; the returned exit status is 1 only if no call was made.
func Child(args []string, stdout, stderr io.Writer) int {
	a, err := child(Action(args[2]), args[3], args[4])
	if err == nil {
		err = json.NewEncoder(stdout).Encode(a)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func child(action Action, pidArg, startArg string) (a answer, err error) {
	pid, err := strconv.Atoi(pidArg)
	if err != nil {
		return a, err
	}
	start, err := strconv.ParseUint(startArg, 10, 64)
	if err != nil {
		return a, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.FcntlFlock(lockFD, unix.F_OFD_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(pid), Len: 1})
	}
	if err != nil {
		return a, fmt.Errorf("cannot lock pid %d in the lock file: %w", pid, err)
	}
	handle, err := process.Again(pid, start)
	if err != nil {
		return a, err
	}
	defer handle.Close()
	if missing := C.checkpoint_load(); missing != nil {
		a.Missing = C.GoString(missing)
		return a, nil
	}
	result := C.checkpoint_init()
	if result == 0 {
		switch action {
		case getState:
			var state C.int
			result = C.checkpoint_state(C.int(pid), &state)
			a.State = State(state)
		case Lock:
			result = C.checkpoint_lock(C.int(pid), C.uint(lockTimeout.Milliseconds()))
		case Checkpoint:
			result = C.checkpoint_checkpoint(C.int(pid))
		case Restore:
			result = C.checkpoint_restore(C.int(pid))
		case Unlock:
			result = C.checkpoint_unlock(C.int(pid))
		default:
			return a, fmt.Errorf("unknown action %q", action)
		}
	}
	if a.Result = int(result); a.Result != 0 {
		a.Name = C.GoString(C.checkpoint_error_name(result))
	}
	return a, nil
}
