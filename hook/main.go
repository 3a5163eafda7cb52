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

// Deadlines are how long a hook may take for all it does, a hung enforcer included, but for what it waits for. runc runs both hooks for a
// container that it fails to create, and an engine waits for their sum. The time-outs in the bundle, which end a hook without a
// word, are longer.
type Deadlines struct {
	Prestart, Poststop time.Duration
	// Replaced is how long prestart waits for an enforcer that was there and is not, and Busy for one that asks to be asked again, such as while it
	// makes room. Each time that it asks it has the whole of Prestart.
	Replaced, Busy time.Duration
}

// DefaultDeadlines are those of gpuslice-hook.
var DefaultDeadlines = Deadlines{Prestart: 5 * time.Second, Poststop: 2 * time.Second, Replaced: 10 * time.Second, Busy: time.Minute}

// askPause is between two questions.
const askPause = 100 * time.Millisecond

// ErrUsage is returned for a command line that names no stage.
var ErrUsage = errors.New("usage: gpuslice-hook [--config FILE] [--pool NAME ...] [--tenant NAME] prestart|createRuntime|poststop, with the container's state on standard input")

// Run runs the stage that was named on the command line, with the state on stdin, and returns the exit
// status. It branches on the stage and never on the state's status, which runtimes set at different times.
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
		// What blocks in the kernel, such as a file on a FUSE volume, hears nothing of ctx.
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
		return 0 // runc stops at the first poststop hook that fails; others' would not run
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

// Sentence is an error as a person is shown it: one line, since an engine shows one, and nothing in it that a
// terminal would obey.
func Sentence(err error) string {
	const most = 2000
	text := "gpuslice: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
