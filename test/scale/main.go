// SPDX-License-Identifier: Apache-2.0

// Scale measures the enforcer: what it costs to register many slices, and to have some. It starts bin/gpusliced with a
// configuration of its own, makes containers that are a cgroup with one process each, and asks over the control socket, as the
// hook does. Nothing is asserted but that each slice which was promised is there: the figures are to look at.
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

// options are the flags.
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
	flag.DurationVar(&o.idle, "idle", 20*time.Second, "how long that is looked at")
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
	for _, part := range []func(*options, *results) error{alone, together, having} {
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

// room raises the limit on descriptors to that of the enforcer's unit, or registers no more slices than fit below what there is.
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
	if most := int(limit.Cur-rest) / each; o.slices > most {
		fmt.Printf("this machine gives a process %d descriptors, which is enough for %d slices\n\n", limit.Cur, most)
		o.slices = most
	}
	return nil
}

// alone registers one slice after the other, and releases them so.
func alone(o *options, r *results) error {
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

// together registers all of them with many clients, and looks what they cost; and releases them again.
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
	time.Sleep(2 * time.Second) // its memory settles
	if after, err = e.cost(); err != nil {
		return err
	}
	r.BytesPerSlice = (float64(after.Resident) - float64(before.Resident)) / float64(len(c))
	r.DescriptorsPerSlice = float64(after.descriptors-before.descriptors) / float64(len(c))
	if r.IdleAll, err = e.idle(min(o.idle, 10*time.Second)); err != nil {
		return err
	}
	// What it answered yes to is there again after a kill.
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

// having looks what slices cost in which a program is attached and does nothing.
func having(o *options, r *results) error {
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
