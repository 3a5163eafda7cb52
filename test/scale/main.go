// SPDX-License-Identifier: Apache-2.0

// Scale measures the enforcer's cost of registering and keeping many slices. It starts bin/gpusliced with its own configuration,
// creates containers as cgroups with one process each, and uses the control socket as the hook does. It only asserts that each
// promised slice exists; the figures are for the reader.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	bin     string
	slices  int
	clients int
	active  int
	idle    time.Duration
	out     string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "the project's programs")
	flag.IntVar(&o.slices, "slices", 10000, "how many are registered")
	flag.IntVar(&o.clients, "clients", 64, "how many ask at one time")
	flag.IntVar(&o.active, "active", 100, "slices with an attached process, for the cost of having them")
	flag.DurationVar(&o.idle, "idle", 20*time.Second, "how long to measure while idle")
	flag.StringVar(&o.out, "json", "", "write the figures to this file, too")
	flag.Parse()
	if err := measure(&o); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func measure(o *options) error {
	if os.Geteuid() != 0 {
		return errors.New("root is needed, to make cgroups")
	}
	if err := room(o); err != nil {
		return err
	}
	r := &results{Slices: o.slices, Clients: o.clients, Active: o.active}
	for _, part := range []func(*options, *results) error{measureWithoutProgram, together, measureWithProgram} {
		if err := part(o, r); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	if o.out == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(text, '\n'), 0o644)
}

// room raises the descriptor limit to that of the enforcer's unit, or lowers the number of slices to fit.
func room(o *options) error {
	const unit, each, rest = 65536, 1, 500
	limit := unix.Rlimit{Cur: unit, Max: unit}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
	}
	if maxSlices := int(limit.Cur-rest) / each; o.slices > maxSlices {
		fmt.Printf("this machine gives a process %d descriptors, which is enough for %d slices\n\n", limit.Cur, maxSlices)
		o.slices = maxSlices
	}
	return nil
}

func measureWithoutProgram(o *options, r *results) error {
	e, err := start(o, false)
	if err != nil {
		return err
	}
	defer e.stop()
	few := min(o.slices, 500)
	c, err := e.containers(few, "sleep")
	if err != nil {
		return err
	}
	if r.One, _, err = e.register(c, 1); err != nil {
		return err
	}
	r.ReleaseOne, err = e.release(c, 1)
	return err
}

// together registers all slices with many clients, measures their cost, and releases them.
func together(o *options, r *results) error {
	e, err := start(o, false)
	if err != nil {
		return err
	}
	defer e.stop()
	c, err := e.containers(o.slices, "sleep")
	if err != nil {
		return err
	}
	before, err := e.cost()
	if err != nil {
		return err
	}
	if r.Many, _, err = e.register(c, o.clients); err != nil {
		return err
	}
	after, err := e.cost()
	if err != nil {
		return err
	}
	r.CPU = (after.CPU - before.CPU).Seconds() * 1000 / float64(len(c))
	time.Sleep(2 * time.Second) // until its memory settles
	if after, err = e.cost(); err != nil {
		return err
	}
	r.BytesPerSlice = (float64(after.Resident) - float64(before.Resident)) / float64(len(c))
	r.DescriptorsPerSlice = float64(after.descriptors-before.descriptors) / float64(len(c))
	if r.IdleAll, err = e.idle(min(o.idle, 10*time.Second)); err != nil {
		return err
	}
	// Each acknowledged slice must exist again after a kill.
	began := time.Now()
	if err := e.again(); err != nil {
		return err
	}
	r.Restart = time.Since(began).Seconds()
	all, err := e.Slices(context.Background())
	if err != nil {
		return err
	}
	if len(all) != len(c) {
		return fmt.Errorf("after a kill there are %d slices of %d", len(all), len(c))
	}
	r.ReleaseMany, err = e.release(c, o.clients)
	return err
}

// measureWithProgram measures the cost of slices with an attached, idle program.
func measureWithProgram(o *options, r *results) error {
	e, err := start(o, true)
	if err != nil {
		return err
	}
	defer e.stop()
	if r.IdleNone, err = e.idle(o.idle / 2); err != nil {
		return err
	}
	c, err := e.containers(o.active, "hog")
	if err != nil {
		return err
	}
	if _, replies, err := e.register(c, 8); err != nil {
		return err
	} else if err := e.attach(c, replies); err != nil {
		return err
	}
	r.IdleActive, err = e.idle(o.idle)
	return err
}
