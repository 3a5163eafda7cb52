// SPDX-License-Identifier: Apache-2.0

// Command examples works in a GPU session as programs do, and says whether the results are right: two kernels on one buffer, an
// inference server, an iterative solver, several modules, and work in one request. It needs no GPU, no driver and no CUDA where it runs,
// only the session's address.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/lease"
)

const usage = `examples works in a GPU session, and says whether the results are right.

Usage:
  examples --address ADDRESS --token-file FILE [NAME...]

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
	address := flags.String("address", "", "a session's")
	token := flags.String("token-file", "", "the session's")
	var names []string
	for _, e := range examples {
		names = append(names, e.name)
	}
	flags.Usage = func() { fmt.Fprintf(os.Stderr, usage, strings.Join(names, ", ")) }
	_ = flags.Parse(os.Args[1:]) // it exits
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
		err := inSession(ctx, e, *address, *token)
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

// inSession works in a session, and leaves nothing in it.
func inSession(ctx context.Context, e example, address, tokenFile string) error {
	s, err := lease.Open(ctx, address, tokenFile)
	if err != nil {
		return err
	}
	defer s.Close()
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
