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
	"sync"
	"time"
)

// action is one thing that somebody hostile does again and again.
type action struct {
	name    string
	atLeast int           // so often in a minute, or it was not really done
	pause   time.Duration // after each time
	last    bool          // in the last tenth of the time only: nothing is left to do afterwards
	// do does it once. An error says why it did not come to it, and is not counted; a harm, that it got what it must not get.
	do func() error
}

// harm is what nobody hostile may get.
type harm struct{ what string }

func (h harm) Error() string { return h.what }

func harmf(format string, args ...any) error { return harm{fmt.Sprintf(format, args...)} }

// outcome is what became of an action.
type outcome struct {
	Name    string
	AtLeast int // in this run
	Done    int
	Missed  int    // times that it did not come to it
	Why     string // the last of those
	Harm    string // the first one
}

// The environment of somebody hostile: this test's program, started again.
const (
	asEnv      = "GPUSLICE_HOSTILE_AS"  // container, user, stranger, subordinate or client
	forEnv     = "GPUSLICE_HOSTILE_FOR" // how long
	victimsEnv = "GPUSLICE_HOSTILE_VICTIMS"
)

// victims are what somebody hostile would like to reach.
type victims struct {
	Control, Users string // sockets
	Slices         string // the directory of the slices
	ID             string // the well-behaved container's
	Secret         string // is in the names of the operator's slices
	PIDs           []int  // of others: the well-behaved container's, the enforcer's
	Programs       string // directory
	Leases, Remote string // the lease service: its socket, and its address for other machines
	Lease          string // another user's
}

// actors are those that are hostile, and their tables.
var actors = map[string]func(victims) []action{
	"container":   containerActions,
	"user":        userActions,
	"stranger":    strangerActions,
	"subordinate": subordinateActions,
	"client":      clientActions,
}

// act does all actions of one of them at once, says "begun", and then what became of each, in JSON.
func act(as string) error {
	duration, err := time.ParseDuration(os.Getenv(forEnv))
	if err != nil {
		return err
	}
	var v victims
	if err := json.Unmarshal([]byte(os.Getenv(victimsEnv)), &v); err != nil {
		return err
	}
	// The runtime ends a program that gets no thread, as one does not while there is a storm of forks: so they are made before.
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
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	outcomes := make([]outcome, len(actions))
	var all sync.WaitGroup
	for i, a := range actions {
		o := &outcomes[i]
		o.Name, o.AtLeast = a.name, int(math.Ceil(float64(a.atLeast)*duration.Minutes()))
		all.Go(func() {
			if a.last {
				pause(ctx, duration*9/10-time.Since(begin))
			}
			for ctx.Err() == nil {
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
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(outcomes)
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
