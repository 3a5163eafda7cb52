// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// Deadlines limit a hook's run, except for the waits that Replaced and Busy limit. runc runs both hooks for a container that it
// fails to create, and the engine waits for their sum. The timeouts in the bundle are longer, since they kill a hook without a
// message.
type Deadlines struct {
	Prestart, Poststop time.Duration
	// Replaced limits the wait for an enforcer that is being replaced, and Busy for one that returns ErrBusy, such as while it
	// evicts. Each attempt may take all of Prestart.
	Replaced, Busy time.Duration
}

// DefaultDeadlines are the deadlines of gpuslice-hook.
var DefaultDeadlines = Deadlines{Prestart: 5 * time.Second, Poststop: 2 * time.Second, Replaced: 10 * time.Second, Busy: time.Minute}

// askPause is the pause between two attempts to register.
const askPause = 100 * time.Millisecond

// ErrUsage is returned for a command line that names no stage.
var ErrUsage = errors.New("usage: gpuslice-hook [--config FILE] [--pool NAME ...] [--tenant NAME] prestart|createRuntime|poststop, with the container's state on standard input")

// Run runs a stage with the state from stdin and returns the exit status. It ignores the state's status, which runtimes set at
// different times.
func Run(stage string, stdin io.Reader, stderr io.Writer, deadlines Deadlines, load func() (*Hook, error)) int {
	deadline := deadlines.Prestart
	if stage == "poststop" {
		deadline = deadlines.Poststop
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	late := time.AfterFunc(deadline, func() { cancel(context.DeadlineExceeded) })
	wait := func() {
		late.Stop()
		time.Sleep(askPause)
		late.Reset(deadline)
	}
	done := make(chan error, 1)
	go func() { done <- run(ctx, stage, stdin, load, deadlines, wait) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		// A blocked system call, such as on a FUSE volume, ignores ctx.
		select {
		case err = <-done:
		case <-time.After(time.Second):
			err = fmt.Errorf("%s took longer than %v and was given up", stage, deadline)
		}
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, Sentence(err))
	if stage == "poststop" {
		return 0 // runc skips the remaining poststop hooks after one fails
	}
	return 1
}

func run(ctx context.Context, stage string, stdin io.Reader, load func() (*Hook, error), deadlines Deadlines, wait func()) error {
	if stage != "prestart" && stage != "createRuntime" && stage != "poststop" {
		return ErrUsage
	}
	state, err := ReadState(stdin)
	if err != nil {
		return err
	}
	h, err := load()
	if err != nil {
		return err
	}
	if stage == "poststop" {
		return h.Poststop(ctx, state)
	}
	h.deadlines, h.wait = deadlines, wait
	return h.Prestart(ctx, state)
}

// Sentence formats an error as one line of about 2000 bytes at most, without control characters.
func Sentence(err error) string {
	const maxBytes = 2000
	text := "gpuslice: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxBytes {
		text = text[:maxBytes] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
