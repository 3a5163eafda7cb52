// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/top"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

const minEvery = 100 * time.Millisecond

func topCommand() *cli.Command {
	return &cli.Command{
		Name:      "top",
		Usage:     "show live which slice holds how much of each device",
		ArgsUsage: " ",
		Description: `Bars show what is used (#) and the overhead (+) of each quota; of a device, what slices hold (#)
and what others do (+), then how busy it is, its temperature and its power, as far as NVML says it.
Keys: up and down select a slice, enter shows its processes, a those of all slices (GPU is how much
of the last second each kept the GPU busy, where NVML says it), o processes outside slices; s sorts
by used, quota, refusals or name; / filters by id, container, tenant or pool; q quits. NO_COLOR=1
turns colours off. Where the output is no terminal, it is printed once, as tables.

   gpuslice top
   gpuslice top --every 5s
   gpuslice top | head -3`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "every", Value: time.Second, Usage: "how long after one refresh the next one begins"},
			&cli.BoolFlag{Name: "once", Usage: "print tables once, also on a terminal"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			every := c.Duration("every")
			if every < minEvery {
				return misuse("--every %s: at least %s is accepted", every, minEvery)
			}
			enforcer, host := connect(c).Watch(), &sensors{slot: driver.NewSlot()}
			ask := func(ctx context.Context, open []string) (top.Snapshot, error) {
				return snapshot(ctx, enforcer, host, open)
			}
			if c.Bool("once") || !isTerminal(c.App.Writer) {
				return printOnce(c, ask)
			}
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if _, err := ask(ctx, nil); err != nil { // before the screen changes
				return err
			}
			return top.Run(ctx, os.Stdin, c.App.Writer, ask, every)
		},
	}
}

// snapshot returns the enforcer's state, and what the driver says of the devices. The enforcer does not show an unprivileged user
// its devices; then they are as the driver shows them.
func snapshot(ctx context.Context, enforcer *client.Watcher, host *sensors, open []string) (top.Snapshot, error) {
	s, err := enforcer.Read(ctx, open...)
	if err != nil {
		return top.Snapshot{}, err
	}
	devices, read := host.read()
	snapshot := top.Snapshot{Devices: s.Devices, Sensors: read, Slices: s.Slices, Details: s.Details, Version: s.Version}
	if s.Devices == nil {
		snapshot.Devices, snapshot.Partial, snapshot.Version = devices, true, 0
	}
	return snapshot, nil
}

func printOnce(c *cli.Context, ask top.Ask) error {
	s, err := ask(c.Context, nil)
	if err != nil {
		return err
	}
	if len(s.Devices) > 0 && !s.Partial {
		if err := show.WithSensors(s.Sensors).Print(c.App.Writer, s.Devices, false); err != nil {
			return err
		}
		fmt.Fprintln(c.App.Writer)
	}
	return show.Slices(c.App.Writer, s.Slices, false)
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
