// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/enforcer/api"
)

const runDescription = `The command and all its descendants draw on one quota; what they hold is given back when they
end, however they end. Root is not needed.

   gpuslice run --vram 4G -- python train.py
   gpuslice run --vram 50% --device 0 -- ./serve
   gpuslice run --vram 2G --mode record --quiet -- ./measure

The host's enforcer is used if it answers, so that the quota counts against the card like a
container's; else one in this process, which knows nothing of other slices.

The exit code is the command's, or 128 + n if signal n killed it; 127 if there is no such
command, 126 if it cannot be run, 125 if gpuslice failed.`

func runCommand() *cli.Command {
	return &cli.Command{
		Name:        "run",
		Usage:       "run a command with a quota of VRAM",
		ArgsUsage:   "[--] COMMAND [ARG…]",
		Description: runDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "vram", Usage: "the quota: `SIZE`, such as 4G, 512MiB, or 50% of the device (required)"},
			&cli.StringSliceFlag{Name: "device", Usage: "UUID or index of the `DEVICE` that the quota is for; may be repeated (default: every device)"},
			&cli.StringFlag{Name: "mode", Value: string(api.Enforce), Usage: "enforce, or record: count and show, refuse nothing"},
			&cli.StringFlag{Name: "name", Usage: "the slice's `ID` (default: made up)"},
			&cli.StringFlag{Name: "tenant", Usage: "`WHOM` to account it to"},
			&cli.BoolFlag{Name: "embedded", Usage: "do not use the host's enforcer"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "do not say which enforcer is used"},
		},
		OnUsageError: usageError(session.ExitFailed),
		Action: func(c *cli.Context) error {
			code, err := run(c)
			if err == nil && code != 0 {
				return &session.Error{Code: code} // the command has said what it had to
			}
			return err
		},
	}
}

func run(c *cli.Context) (int, error) {
	request, err := sessionRequest(c)
	if err != nil {
		return 0, &session.Error{Code: session.ExitFailed, Err: err}
	}
	if !c.Args().Present() {
		return 0, &session.Error{Code: session.ExitFailed, Err: fmt.Errorf("no command to run: gpuslice run --vram SIZE -- COMMAND")}
	}
	enforcer, which, stop, err := chooseEnforcer(c)
	if err != nil {
		return 0, &session.Error{Code: session.ExitFailed, Err: err}
	}
	defer stop()

	s := session.Session{
		Enforcer: enforcer,
		Request:  request,
		Library:  place.New().Library,
		Command:  c.Args().Slice(),
		Env:      os.Environ(),
		Registered: func(reply api.RegisterReply) {
			if !c.Bool("quiet") {
				fmt.Fprintf(os.Stderr, "gpuslice: slice %s, %s of VRAM, %s\n", reply.Slice.ID, c.String("vram"), which)
			}
		},
	}
	return s.Run(c.Context)
}

// sessionRequest reads the flags.
func sessionRequest(c *cli.Context) (api.RegisterRequest, error) {
	r := api.RegisterRequest{
		ID:     c.String("name"),
		Mode:   api.Mode(c.String("mode")),
		Tenant: c.String("tenant"),
		UID:    uint32(os.Getuid()),
		GID:    uint32(os.Getgid()),
	}
	if r.Mode != api.Enforce && r.Mode != api.Record {
		return r, fmt.Errorf("--mode %q: %s and %s are accepted", r.Mode, api.Enforce, api.Record)
	}
	if r.ID != "" {
		if err := api.CheckID(r.ID); err != nil {
			return r, fmt.Errorf("--name: %w", err)
		}
	}
	if !c.IsSet("vram") {
		return r, fmt.Errorf("--vram is missing: how much may the command hold? For example --vram 4G")
	}
	bytes, percent, err := api.ParseQuota(c.String("vram"))
	if err != nil {
		return r, fmt.Errorf("--vram: %w", err)
	}
	devices := c.StringSlice("device")
	if len(devices) == 0 {
		devices = []string{api.AllDevices}
	}
	for _, device := range devices {
		r.Quotas = append(r.Quotas, api.Quota{Device: device, Bytes: bytes, Percent: percent})
	}
	return r, nil
}

// chooseEnforcer returns the host's enforcer if it answers, and else starts one in this process. which says
// so to a person; stop ends what was started.
func chooseEnforcer(c *cli.Context) (enforcer session.Enforcer, which string, stop func(), err error) {
	if c.Bool("embedded") {
		enforcer, stop, err = embedded(c.Context)
		return enforcer, "enforcer in this process", stop, err
	}
	host := connect(c)
	ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
	defer cancel()
	_, err = host.Info(ctx)
	if err == nil {
		return host, "the host's enforcer", func() {}, nil
	}
	if c.IsSet("socket") {
		return nil, "", nil, fmt.Errorf("--socket %s: %w", c.String("socket"), err)
	}
	which = "enforcer in this process (the host has none)"
	if _, statErr := os.Stat(c.String("socket")); statErr == nil {
		which = fmt.Sprintf("enforcer in this process (the host's cannot be used: %v)", err)
	}
	enforcer, stop, err = embedded(c.Context)
	return enforcer, which, stop, err
}
