// SPDX-License-Identifier: Apache-2.0

// Command examples runs programs in leases and checks their results. It needs no GPU, driver or CUDA, only the lease service's
// socket or a session's address.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/lease"
)

const usage = `examples works in leases, and says whether the results are right.

Usage:
  examples [--socket SOCKET] [NAME...]                      each in a lease of its own, of 64 MiB for 120 s
  examples --address ADDRESS --token-file FILE [NAME...]    all in one session

Names: %s. Without one, all.
`

type example struct {
	name string
	run  func(context.Context, *lease.Session) (string, error)
}

var examples = []example{
	{"recipe", recipe}, {"inference", inference}, {"solver", solver}, {"modules", modules}, {"submit", submit},
}

func main() {
	flags := flag.NewFlagSet("examples", flag.ExitOnError)
	socket := flags.String("socket", lease.DefaultSocket, "the lease service's")
	address := flags.String("address", "", "a session's")
	token := flags.String("token-file", "", "the session's")
	var names []string
	for _, e := range examples {
		names = append(names, e.name)
	}
	flags.Usage = func() { fmt.Fprintf(os.Stderr, usage, strings.Join(names, ", ")) }
	_ = flags.Parse(os.Args[1:]) // exits on an error
	for _, name := range flags.Args() {
		if !slices.Contains(names, name) {
			fmt.Fprintf(os.Stderr, "examples: there is no %q: there are %s\n", name, strings.Join(names, ", "))
			os.Exit(2)
		}
	}
	failed := 0
	for _, e := range examples {
		if flags.NArg() > 0 && !slices.Contains(flags.Args(), e.name) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		var err error
		if *address != "" {
			err = inSession(ctx, e, *address, *token)
		} else {
			err = inLease(ctx, e, lease.Service{Socket: *socket})
		}
		cancel()
		if err != nil {
			fmt.Printf("%s: FAILED: %v\n", e.name, err)
			failed++
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// inLease acquires a lease, runs the example in it, and checks that dropping it leaves nothing charged.
func inLease(ctx context.Context, e example, service lease.Service) error {
	began := time.Now()
	l, err := service.Acquire(ctx, lease.Request{VRAM: 64 << 20, TTL: 120 * time.Second})
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s on %s, acquired in %v\n", e.name, l.ID, l.DeviceName, time.Since(began).Round(time.Microsecond))
	err = inSession(ctx, e, l.Address, l.TokenFile)
	began = time.Now()
	l, dropped := service.Drop(ctx, l.ID)
	if dropped != nil {
		return errors.Join(err, dropped)
	}
	fmt.Printf("%s: dropped in %v: %s, %d bytes charged\n", e.name, time.Since(began).Round(time.Microsecond), l.State, l.Charged)
	if l.State != lease.Ended || l.Charged != 0 {
		err = errors.Join(err, errors.New("something of the lease is left"))
	}
	return err
}

// inSession runs the example, and checks that it leaves nothing in the session.
func inSession(ctx context.Context, e example, address, tokenFile string) error {
	s, err := lease.Open(ctx, address, tokenFile)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // all results have arrived
	began := time.Now()
	result, err := e.run(ctx, s)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, in %v\n", e.name, result, time.Since(began).Round(time.Microsecond))
	stats, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	if stats.GetAllocated()+stats.GetBuffers()+stats.GetModules() != 0 {
		return fmt.Errorf("the session still holds %d bytes in %d buffers, and %d modules", stats.GetAllocated(), stats.GetBuffers(), stats.GetModules())
	}
	return nil
}
