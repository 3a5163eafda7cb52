// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/manual"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

const runDescription = `The command and all its descendants draw on one quota; what they hold is given back when they
end, however they end. Root is not needed.

   gpuslice run --vram 4G -- python train.py
   gpuslice run --vram 50% --device 1 -- ./serve
   gpuslice run --mode record --quiet -- ./measure
   gpuslice run --vram 4G --ttl 1h -- ./experiment
   gpuslice run --pool llm --vram 10G -- python serve.py

The host's enforcer is used if it answers, so that the quota counts against the card like a
container's; else one in this process, which knows nothing of other slices, and a line says so. --require-host fails then.

With --device CUDA shows the command those devices alone, in the order in which they are given: the first is cuda:0. They
are listed by UUID in CUDA_VISIBLE_DEVICES. If that is set already, its order is kept, and it must have each of them. An
index is that of nvidia-smi and ` + "`gpuslice devices`" + `. A command that sets CUDA_VISIBLE_DEVICES itself sees what it
lists; on a device without a quota it is given nothing.

With --join the command joins a running session and shares its quota. That needs the session's token: GPUSLICE_TOKEN_FILE
names the file in the session, which only its user can read. (A session of an enforcer in this process has none and cannot be joined.) A number is that of an open descriptor. The command sees the devices that the
session has quotas on; of those, the ones that its own CUDA_VISIBLE_DEVICES lists, if it is set. The session ends with its own command. Here
the last line is typed beside the session, in another terminal:

   gpuslice run --vram 4G -- \
      sh -c 'echo "$GPUSLICE_TOKEN_FILE" >token; exec ./serve'
   gpuslice run --join "$(cat token)" -- ./beside-it

With --wait the command waits if its quota cannot be granted now, and runs once it can. It fails at once if
waiting changes nothing: the quota is larger than the device, or than your limit. It asks every few seconds; the order among
those who wait is not kept.

   gpuslice run --vram 60G --wait 2h -- python train.py
   gpuslice run --vram 60G --wait forever -- python train.py

When the command expires (--ttl), it gets no more memory, and its processes get SIGTERM, and later SIGKILL.
` + "`gpuslice renew`" + ` extends the time.

The exit code is the command's, or 128 + n if signal n killed it; 127 if there is no such
command, 126 if it cannot be run, 125 if gpuslice failed.`

func runCommand() *cli.Command {
	return &cli.Command{
		Name:        "run",
		Usage:       "run a command with a quota of VRAM",
		ArgsUsage:   "[--] COMMAND [ARG…]",
		Description: runDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "vram", Aliases: []string{"limit"}, Usage: "the quota: `SIZE`, such as 4G, 512MiB, or 50% of the device (required, unless there is a pool, or --mode record)"},
			&cli.StringFlag{Name: "pool", Usage: "share the quota of this `POOL`, too; without --vram only that"},
			&cli.StringSliceFlag{Name: "device", Usage: "UUID or index of the `DEVICE` that the quota is for; the command sees only these; may be repeated (default: every device)"},
			&cli.StringFlag{Name: "ttl", Value: "never", Usage: "how long it may run: `DURATION`, such as 90s, 30m, 12h or 7d; then it is ended; never, or 0, for no end"},
			manual.StringOf{Values: []string{forever}, StringFlag: &cli.StringFlag{Name: "wait", Usage: "if the quota cannot be granted now, wait for it: `DURATION`, such as 30s, 10m or 2h; or forever"}},
			manual.StringOf{Values: []string{string(api.Enforce), string(api.Record)}, StringFlag: &cli.StringFlag{Name: "mode", Value: string(api.Enforce), Usage: "enforce, or record: count and show, refuse nothing"}},
			&cli.StringFlag{Name: "name", Usage: "the slice's `ID` (default: made up)"},
			&cli.StringFlag{Name: "tenant", Usage: "`TENANT` to account it to"},
			&cli.BoolFlag{Name: "elastic", Usage: "while it is idle its VRAM may be moved to host memory; it comes back with its next CUDA call"},
			&cli.IntFlag{Name: "priority", Usage: "of elastic commands the one with the lowest `NUMBER` is moved first (-1000 to 1000)"},
			&cli.StringFlag{Name: "join", Usage: "join the session of the token in this `FILE` or descriptor", TakesFile: true},
			&cli.BoolFlag{Name: "embedded", Usage: "do not use the host's enforcer"},
			&cli.BoolFlag{Name: "require-host", Usage: "fail if the host's enforcer does not answer"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "do not print which enforcer is used, nor what it waits for"},
		},
		OnUsageError: usageError(session.ExitFailed),
		Action: func(c *cli.Context) error {
			code, err := run(c)
			if err == nil && code != 0 {
				return &session.Error{Code: code} // the command has printed its own errors
			}
			return err
		},
	}
}

func run(c *cli.Context) (int, error) {
	var request api.RegisterRequest
	var token api.Token
	var err error
	if c.IsSet("join") {
		request.ID, token, err = joinFlags(c)
	} else {
		request, err = sessionRequest(c)
	}
	if err != nil {
		return 0, &session.Error{Code: session.ExitFailed, Err: err}
	}
	if !c.Args().Present() {
		return 0, &session.Error{Code: session.ExitFailed, Err: fmt.Errorf("no command to run: gpuslice run --vram SIZE -- COMMAND")}
	}
	wait, err := waitFlag(c)
	if err != nil {
		return 0, &session.Error{Code: session.ExitFailed, Err: err}
	}
	enforcer, which, stop, err := chooseEnforcer(c)
	if err != nil {
		return 0, &session.Error{Code: session.ExitFailed, Err: err}
	}
	defer stop()

	var waits time.Time
	s := session.Session{
		Enforcer: enforcer,
		Wait:     wait,
		Waiting: func(refusal error) {
			if waits = time.Now(); !c.Bool("quiet") {
				fmt.Fprintf(os.Stderr, "gpuslice: waiting for %s (--wait %s; Ctrl-C ends it): %v\n", quotaOf(c), c.String("wait"), refusal)
			}
		},
		Request: request,
		Token:   token,
		Library: place.New().Library,
		Devices: nvmlDevices,
		Command: c.Args().Slice(),
		Env:     os.Environ(),
		Registered: func(reply api.RegisterReply) {
			if !c.Bool("quiet") {
				life := ""
				if ttl := reply.Slice.TTL; ttl > 0 && token == "" {
					life = " for " + api.FormatTTL(ttl)
				}
				if !waits.IsZero() {
					which += ", after waiting for " + time.Since(waits).Round(time.Second).String()
				}
				fmt.Fprintf(os.Stderr, "gpuslice: slice %s, %s%s, %s\n", reply.Slice.ID, quotaOf(c), life, which)
			}
		},
		Noticed: func(e api.Event) {
			if !c.Bool("quiet") {
				fmt.Fprintf(os.Stderr, "gpuslice: slice %s: %s\n", e.Slice, noticeText(e))
			}
		},
		Released: func(slice api.Slice) {
			if slice.Reason != "" && !c.Bool("quiet") { // the slice expired, or every request was rejected
				fmt.Fprintf(os.Stderr, "gpuslice: slice %s: %s\n", slice.ID, slice.Reason)
			}
		},
	}
	return s.Run(c.Context)
}

// noticeText says what happened, and what to do about a process that the interceptor is not loaded in.
func noticeText(e api.Event) string {
	text := show.Sentence(e)
	if e.Cause == api.BypassUnattached {
		text += fmt.Sprintf("\ngpuslice: %s is not loaded in that process, as in a sandbox or with a cleared environment: pass LD_PRELOAD and %s on to it, and bind the files that they name",
			api.LibraryName, api.DirEnv)
	}
	return text
}

const forever = "forever"

func waitFlag(c *cli.Context) (time.Duration, error) {
	text := c.String("wait")
	switch {
	case !c.IsSet("wait"):
		return 0, nil
	case text == forever:
		return session.Forever, nil
	}
	wait, err := api.ParseDuration(text)
	if err != nil || wait <= 0 || wait > api.MaxTTL {
		return 0, fmt.Errorf("--wait %q: a duration such as \"30s\", \"10m\" or \"2h\" is accepted, or forever", text)
	}
	return wait, nil
}

func quotaOf(c *cli.Context) string {
	pool := c.String("pool")
	switch {
	case c.IsSet("join"):
		return "joined"
	case c.String("mode") == string(api.Record):
		return "VRAM is counted and not refused"
	case pool == "":
		return c.String("vram") + " of VRAM"
	case !c.IsSet("vram"):
		return "VRAM of pool " + pool
	}
	return c.String("vram") + " of VRAM, of pool " + pool
}

func joinFlags(c *cli.Context) (id string, token api.Token, err error) {
	for _, other := range []string{"vram", "device", "ttl", "mode", "name", "tenant", "pool", "embedded", "elastic", "priority", "wait"} {
		if c.IsSet(other) {
			return "", "", fmt.Errorf("--%s and --join: a joined session keeps its own settings: leave one of them out", other)
		}
	}
	if id, token, err = readToken(c.String("join")); err != nil {
		return "", "", fmt.Errorf("--join %q: %w", c.String("join"), err)
	}
	return id, token, nil
}

func sessionRequest(c *cli.Context) (api.RegisterRequest, error) {
	r := api.RegisterRequest{
		ID:      c.String("name"),
		Mode:    api.Mode(c.String("mode")),
		Tenant:  c.String("tenant"),
		Elastic: c.Bool("elastic"), Priority: c.Int("priority"),
		UID: uint32(os.Getuid()),
		GID: uint32(os.Getgid()),
	}
	if r.Mode != api.Enforce && r.Mode != api.Record {
		return r, fmt.Errorf("--mode %q: %s and %s are accepted", r.Mode, api.Enforce, api.Record)
	}
	if r.ID != "" {
		if err := api.CheckID(r.ID); err != nil {
			return r, fmt.Errorf("--name: %w", err)
		}
	}
	pool := c.String("pool")
	if pool != "" {
		r.Pools = api.PoolNames{pool}
	}
	switch {
	case c.IsSet("tenant") && r.Tenant == "":
		return r, errors.New(`--tenant "" is no name: name a tenant, or leave it out`)
	case c.IsSet("pool") && pool == "":
		return r, fmt.Errorf("--pool: %w", api.CheckPoolName(""))
	case c.Bool("require-host") && c.Bool("embedded"):
		return r, errors.New("--require-host and --embedded contradict each other: leave one of them out")
	case pool != "" && c.Bool("embedded"):
		return r, errors.New("--pool: pools are the host's enforcer's, which --embedded does not use: leave one of them out")
	case pool != "" && r.Mode == api.Record:
		return r, errors.New("--pool: a command that only records is refused nothing, so it cannot be in a pool: leave one of them out")
	case c.IsSet("vram"):
		var err error
		if r.Quotas, err = quotaFlags(c); err != nil {
			return r, err
		}
	case c.IsSet("device"):
		return r, errors.New("--device needs --vram, the quota for that device")
	case pool == "" && r.Mode != api.Record:
		return r, fmt.Errorf("--vram is missing: how much may the command hold? For example --vram 4G")
	}
	var err error
	if r.TTL, err = api.ParseTTL(c.String("ttl")); err != nil {
		return r, fmt.Errorf("--ttl: %w", err)
	}
	return r, nil
}

const inThisProcess = "enforcer in this process"

// chooseEnforcer returns the host's enforcer if it answers; otherwise it starts one in this process. which describes it; stop
// ends one that it started.
func chooseEnforcer(c *cli.Context) (enforcer session.Enforcer, which string, stop func(), err error) {
	if c.Bool("embedded") {
		enforcer, stop, err = embedded(c.Context)
		return enforcer, inThisProcess, stop, err
	}
	host := connect(c)
	ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
	defer cancel()
	_, err = host.Info(ctx)
	if err == nil {
		return host, "the host's enforcer", func() {}, nil
	}
	if c.String("pool") != "" {
		return nil, "", nil, fmt.Errorf("--pool: the host's enforcer keeps the pools: %w", err)
	}
	if c.IsSet("socket") {
		return nil, "", nil, err // no fallback if the user names an enforcer
	}
	if c.IsSet("join") {
		return nil, "", nil, err // a new enforcer has no session to join
	}
	if c.Bool("require-host") {
		return nil, "", nil, fmt.Errorf("--require-host: %w", err)
	}
	if !c.Bool("quiet") {
		why := err.Error()
		if errors.Is(err, fs.ErrNotExist) {
			why = "no gpusliced runs on this host"
		}
		fmt.Fprintf(os.Stderr, "gpuslice: %s: the quota limits this command only, and other programs may take the memory that it expects (--require-host refuses that)\n", why)
	}
	enforcer, stop, err = embedded(c.Context)
	return enforcer, inThisProcess, stop, err
}
