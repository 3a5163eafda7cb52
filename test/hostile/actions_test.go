//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

type action struct {
	name    string
	atLeast int           // per minute, of a last one in all; an action goes on until then, and the test fails if that takes too long
	pause   time.Duration // after each time
	last    bool          // in the last tenth of the run, once all others have ended: no action works after it, not even itself
	// do performs it once. An error gives the reason for a failed attempt, which is not counted; a harm means that the attack
	// succeeded.
	do   func() error
	note func() string // for the report; nil: none
}

type harm struct{ what string }

func (h harm) Error() string { return h.what }

func harmf(format string, args ...any) error { return harm{fmt.Sprintf(format, args...)} }

type outcome struct {
	Name    string
	AtLeast int // in this run
	Done    int
	Missed  int    // failed attempts
	Why     string // reason of the last one
	Harm    string // the first harm
	Note    string
}

// Environment of a hostile actor, which is this test's program started again.
const (
	asEnv      = "GPUSLICE_HOSTILE_AS"  // a key of actors
	forEnv     = "GPUSLICE_HOSTILE_FOR" // how long
	victimsEnv = "GPUSLICE_HOSTILE_VICTIMS"
)

type victims struct {
	Control, Users string // sockets
	Slices         string // the directory of the slices
	ID             string // the well-behaved container's
	Secret         string // part of the names of the operator's slices
	PIDs           []int  // of others: the well-behaved container's, the enforcer's
	Programs       string // directory
	Leases, Remote string // the lease service's socket, and its address for other machines
	Lease          string // another user's
}

var actors = map[string]func(victims) []action{
	"container":   containerActions,
	"user":        userActions,
	"stranger":    strangerActions,
	"neighbour":   neighbourActions,
	"visitor":     visitorActions,
	"subordinate": subordinateActions,
	"client":      clientActions,
	"rival":       rivalActions,
}

// longest is how much longer than planned an actor acts on a loaded machine.
const longest = 5 * time.Minute

// act runs all actions of an actor concurrently. It prints "begun", then the outcomes in JSON.
func act(as string) error {
	duration, err := time.ParseDuration(os.Getenv(forEnv))
	if err != nil {
		return err
	}
	var v victims
	if err := json.Unmarshal([]byte(os.Getenv(victimsEnv)), &v); err != nil {
		return err
	}
	// Threads are created first: the runtime aborts a program that cannot create one, which happens during a fork storm.
	var warm, ready sync.WaitGroup
	const threads = 64
	ready.Add(threads)
	for range threads {
		warm.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		})
	}
	warm.Wait()
	actions := actors[as](v)
	fmt.Println("begun")
	ctx, cancel := context.WithTimeout(context.Background(), duration+longest)
	defer cancel()
	begin := time.Now()
	outcomes := make([]outcome, len(actions))
	isLast := func(a action) bool { return a.last }
	for _, last := range []bool{false, true} {
		end := begin.Add(duration)
		if !last && slices.ContainsFunc(actions, isLast) {
			end = begin.Add(duration * 9 / 10)
		}
		var all sync.WaitGroup
		for i, a := range actions {
			o := &outcomes[i]
			o.Name, o.AtLeast = a.name, a.atLeast
			if !a.last {
				o.AtLeast = int(math.Ceil(float64(a.atLeast) * duration.Minutes()))
			}
			if a.last == last {
				all.Go(func() { a.until(ctx, end, o) })
			}
		}
		all.Wait()
	}
	return json.NewEncoder(os.Stdout).Encode(outcomes)
}

// until performs an action until end, and until it came about often enough.
func (a action) until(ctx context.Context, end time.Time, o *outcome) {
	for ctx.Err() == nil && (o.Done < o.AtLeast || time.Now().Before(end)) {
		var h harm
		err := a.do()
		switch {
		case errors.As(err, &h):
			if o.Harm == "" {
				o.Harm = h.what
			}
		case err != nil:
			o.Missed++
			o.Why = err.Error()
			pause(ctx, 2*time.Millisecond)
		default:
			o.Done++
		}
		pause(ctx, a.pause)
	}
	if a.note != nil {
		o.Note = a.note()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
