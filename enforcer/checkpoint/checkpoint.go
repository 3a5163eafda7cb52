// SPDX-License-Identifier: Apache-2.0

// Package checkpoint moves a process's device memory to host memory and back, by the CUDA driver (cuCheckpointProcess*, since driver 570).
//
// cuCheckpointProcess* takes the pid of another process. Each call runs in a child, a new instance of this program (Child), which loads
// libcuda, makes one call, and exits. So the enforcer never loads libcuda, and a hung driver costs one child. Children for the same process
// serialise by a lock on a byte of a file, which also outlives a killed enforcer: one call on a process ends before the next begins. A hung
// call delays no call on another process.
//
// The package must never decide whether a process may move, or whether the device has room for it: a restore without room loses the
// process.
package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// State is the driver's state of a process (CUprocessState).
type State int

const (
	Running      State = 0
	Locked       State = 1 // its CUDA calls wait until it is unlocked
	Checkpointed State = 2 // it holds no device memory
	Failed       State = 3 // lost: it cannot be recovered
)

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Locked:
		return "locked"
	case Checkpointed:
		return "checkpointed"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("in state %d", int(s))
}

// Action is an operation on a process. Each is valid in one state.
type Action string

const (
	Lock       Action = "lock"       // Running to Locked, after its submitted work has completed
	Checkpoint Action = "checkpoint" // Locked to Checkpointed
	Restore    Action = "restore"    // Checkpointed to Locked; to Failed if the device has no room
	Unlock     Action = "unlock"     // Locked to Running

	getState Action = "state"
)

// CUresult values with a meaning to the enforcer.
const (
	ResultNotReady     = 600
	ResultNotSupported = 801
)

// ErrNone means that this host's driver has no checkpoints. The error that wraps it says why.
var ErrNone = errors.New("the driver cannot suspend a process")

// ErrHangs means that the driver did not answer in time. The action may still take effect.
var ErrHangs = errors.New("the driver does not answer")

// Error is a failure reported by the driver.
type Error struct {
	Action Action
	PID    int
	Result int // CUresult
	Name   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("the driver returned %s (%d) for %s of process %d", e.Name, e.Result, e.Action, e.PID)
}

// lockTimeout is the time that a process has to complete its submitted work. The driver enforces it, but not for a stopped process.
const lockTimeout = 10 * time.Second

// Driver makes calls by children. It is safe for concurrent use.
type Driver struct {
	// LockFile has a byte for each pid. Children lock them.
	LockFile string
}

// answer is a child's output.
type answer struct {
	Missing string `json:"missing,omitempty"` // missing part of the driver
	Result  int    `json:"result"`
	Name    string `json:"name,omitempty"`
	State   State  `json:"state"`
}

// State returns the state of a process.
func (d *Driver) State(of process.Identity, timeout time.Duration) (State, error) {
	a, err := d.call(getState, of, timeout)
	return a.State, err
}

// Do performs an action on a process. The error is an *Error if the driver reported it, or wraps ErrNone or ErrHangs.
func (d *Driver) Do(action Action, to process.Identity, timeout time.Duration) error {
	_, err := d.call(action, to, timeout)
	return err
}

// call runs a child for one action. It passes the process's start time: while the child waits for the lock, the pid may be reused.
func (d *Driver) call(action Action, about process.Identity, timeout time.Duration) (a answer, err error) {
	pid := about.PID
	guard.MayWait("a checkpoint by the driver")
	lock, err := os.OpenFile(d.LockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return a, err
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var out, said bytes.Buffer
	child := exec.CommandContext(ctx, "/proc/self/exe", childArg, string(action), strconv.Itoa(pid), strconv.FormatUint(about.Start, 10))
	child.Args[0], child.Stdout, child.Stderr, child.ExtraFiles = os.Args[0], &out, &said, []*os.File{lock}
	if err := child.Start(); err != nil {
		return a, fmt.Errorf("cannot start the program that calls the driver: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done(): // a child blocked in the kernel does not exit when killed
		return a, fmt.Errorf("%s of process %d: %w within %s", action, pid, ErrHangs, timeout)
	}
	if err != nil {
		return a, fmt.Errorf("%s of process %d: the program that calls the driver failed: %w: %.500s", action, pid, err, said.String())
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("%s of process %d: the program that calls the driver failed: %w", action, pid, err)
	}
	switch {
	case a.Missing != "":
		return a, fmt.Errorf("%w: %s is missing (the driver's libcuda.so.1 is needed on the host, from 570 on)", ErrNone, a.Missing)
	case a.Result != 0:
		return a, &Error{action, pid, a.Result, a.Name}
	}
	return a, nil
}
