// SPDX-License-Identifier: Apache-2.0

// Command vmm checks package vmm, on a card or on the simulated driver:
//
//	vmm caches [-time 1m] [-seed N] [-socket PATH]   grows and shrinks four caches at random, and compares bytes with the ledger
//	vmm speed [-quick] [-rows FILE]                  compares Map with the driver's own calls in C
//	vmm models [-memory BYTES]                       compares four models under one limit with static shares
//	vmm hold [-memory BYTES]                         maps this many bytes, or all, and holds them until its input ends
//
// The exit status is 1 if a check fails; it does not depend on times.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/vmm"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vmm:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) == 0 {
		return fmt.Errorf("what to do is missing: caches, speed, models and hold are accepted")
	}
	flags := flag.NewFlagSet("vmm "+args[0], flag.ExitOnError)
	var do func(*vmm.Device) error
	switch args[0] {
	case "caches":
		c := new(caches)
		flags.DurationVar(&c.time, "time", time.Minute, "for how long")
		flags.Uint64Var(&c.seed, "seed", uint64(time.Now().UnixNano()), "of what is random")
		flags.Uint64Var(&c.within, "within", 0, "bytes that the driver's figure may differ by, where no socket is given: it takes memory for tables of its own")
		flags.StringVar(&c.socket, "socket", "", "of the enforcer of this session: its ledger is compared, too")
		do = c.run
	case "speed":
		quick := flags.Bool("quick", false, "a tenth of it")
		rows := flags.String("rows", "", "a file for the points of the curve, as JSON")
		do = func(d *vmm.Device) error { return speed(d, *quick, *rows) }
	case "models":
		memory := flags.Uint64("memory", 0, "bytes that the models have together; 0: nine tenths of what is free")
		do = func(d *vmm.Device) error { return models(d, *memory) }
	case "hold":
		memory := flags.Uint64("memory", 0, "bytes; 0: until more is refused")
		do = func(d *vmm.Device) error { return holdAll(d, *memory) }
	default:
		return fmt.Errorf("%q is unknown: caches, speed, models and hold are accepted", args[0])
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	d, err := vmm.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return do(d)
}
