// SPDX-License-Identifier: Apache-2.0

// Package checkpoint moves what a process holds on its devices to host memory and back, by the CUDA driver (cuCheckpointProcess*, from 570 on).
//
// cuCheckpointProcess* takes the pid of another process. A child makes each call: this program, started again (Child). The child loads libcuda, makes
// one call, and exits. So the enforcer never loads libcuda, and a driver that hangs costs one child.
// Children that name one process wait for one another by a lock on a byte of a file, also after the enforcer was killed: one call on a process
// ends before the next begins. A call that hangs delays none on another process.
//
// It must never decide whether a process may be moved, nor whether there is room for it: a restore without room loses the process for good.
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

// State is what the driver says of a process, as CUprocessState.
type State int

const (
	Running      State = 0
	Locked       State = 1 // its calls wait until it is unlocked
	Checkpointed State = 2 // it holds nothing on any device
	Failed       State = 3 // it is lost: nothing brings it back
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

// Action is what is done to a process. Each has one state in which it can be done.
type Action string

const (
	Lock       Action = "lock"       // Running to Locked, once the work that it has given the device is done
	Checkpoint Action = "checkpoint" // Locked to Checkpointed
	Restore    Action = "restore"    // Checkpointed to Locked; to Failed, if the device has no room
	Unlock     Action = "unlock"     // Locked to Running

	ask Action = "state"
)

// Results of the driver that mean something here, as CUresult.
const (
	ResultNotReady     = 600
	ResultNotSupported = 801
)

// ErrNone says that this host's driver has no checkpoints; the error around it says why.
var ErrNone = errors.New("the driver cannot suspend a process")

// ErrHangs says that the driver did not answer in time. What was asked may be done yet.
var ErrHangs = errors.New("the driver does not answer")

// Error is the driver's.
type Error struct {
	Action Action
	PID    int
	Result int // CUresult
	Name   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("the driver answers %s (%d) to %s process %d", e.Name, e.Result, e.Action, e.PID)
}

// lockTimeout is how long a process has to end the work that it has given its devices. The driver counts it.
const lockTimeout = 10 * time.Second

// Driver asks by children. Its methods may be called by several goroutines.
type Driver struct {
	// LockFile has a byte for each pid, which the children lock.
	LockFile string
}

// answer is what a child prints.
type answer struct {
	Missing string `json:"missing,omitempty"` // of the driver
	Result  int    `json:"result"`
	Name    string `json:"name,omitempty"`
	State   State  `json:"state"`
}

// State asks about a process.
func (d *Driver) State(of process.Identity, timeout time.Duration) (State, error) {
	a, err := d.ask(ask, of, timeout)
	return a.State, err
}

// Do has the driver do something to a process. The error is an *Error if it is the driver's, or wraps ErrNone or ErrHangs.
func (d *Driver) Do(action Action, to process.Identity, timeout time.Duration) error {
	_, err := d.ask(action, to, timeout)
	return err
}

// ask passes the start time, too: a child may wait for others, and the pid be another process's by then.
func (d *Driver) ask(action Action, about process.Identity, timeout time.Duration) (a answer, err error) {
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
	child := exec.CommandContext(ctx, "/proc/self/exe", childWord, string(action), strconv.Itoa(pid), strconv.FormatUint(about.Start, 10))
	child.Args[0], child.Stdout, child.Stderr, child.ExtraFiles = os.Args[0], &out, &said, []*os.File{lock}
	if err := child.Start(); err != nil {
		return a, fmt.Errorf("start the program that asks the driver: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done(): // one that the kernel holds does not end when it is killed
		return a, fmt.Errorf("%s process %d: %w within %s", action, pid, ErrHangs, timeout)
	}
	if err != nil {
		return a, fmt.Errorf("%s process %d: the program that asks the driver: %w: %.500s", action, pid, err, said.String())
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("%s process %d: the program that asks the driver: %w", action, pid, err)
	}
	switch {
	case a.Missing != "":
		return a, fmt.Errorf("%w: %s is missing (the driver's libcuda.so.1 is needed on the host, from 570 on)", ErrNone, a.Missing)
	case a.Result != 0:
		return a, &Error{action, pid, a.Result, a.Name}
	}
	return a, nil
}
