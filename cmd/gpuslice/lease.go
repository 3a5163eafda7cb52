// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/lease"
)

func leaseCommand() *cli.Command {
	return &cli.Command{
		Name:  "lease",
		Usage: "a slice of a GPU for a time, without a GPU device, a driver or CUDA",
		Description: `A lease is a slice in which a broker works for its clients: they allocate memory, load modules and
launch kernels over a socket. It ends when it is dropped, or when it expires; its memory is free then.

   gpuslice lease acquire --vram 7G --ttl 2h
   gpuslice lease renew lease-0f3c5e2a9b8d7614 2h
   gpuslice lease drop lease-0f3c5e2a9b8d7614

   gpuslice lease --address tls:gpu1.example.org:9837 \
      --certificate me.pem --key me.key --ca ca.pem list

Root is not needed: the operator sets each user's limit, as for ` + "`gpuslice run`" + `.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "address", EnvVars: []string{"GPUSLICE_LEASE_ADDRESS"}, Usage: "use the lease service of another machine, at tls:HOST:PORT, as the user that the certificate names"},
			&cli.StringFlag{Name: "certificate", EnvVars: []string{"GPUSLICE_LEASE_CERTIFICATE"}, Usage: "with --address: the client's certificate, a PEM `FILE`", TakesFile: true},
			&cli.StringFlag{Name: "key", EnvVars: []string{"GPUSLICE_LEASE_KEY"}, Usage: "with --address: its key, a PEM `FILE`", TakesFile: true},
			&cli.StringFlag{Name: "ca", EnvVars: []string{"GPUSLICE_LEASE_CA"}, Usage: "with --address: the CA of the host's certificate, a PEM `FILE`", TakesFile: true},
			leaseSocketFlag(),
		},
		OnUsageError: usageError(exitUsage),
		Subcommands:  []*cli.Command{leaseAcquireCommand(), leaseRenewCommand(), leaseDropCommand(), leaseListCommand(), leaseShowCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return noCommand("lease", c.Args().First(), c.Command.Subcommands)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func leaseSocketFlag() cli.Flag {
	return &cli.StringFlag{Name: "lease-socket", Value: lease.DefaultSocket, EnvVars: []string{"GPUSLICE_LEASE_SOCKET"}, Usage: "socket of the lease service, if not that of the configuration", TakesFile: true}
}

func leaseJSONFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print JSON; sizes are in bytes"}
}

func leaseAcquireCommand() *cli.Command {
	return &cli.Command{
		Name:      "acquire",
		Usage:     "get a lease",
		ArgsUsage: " ",
		Description: `--vram is what the lease's clients may allocate. What the broker's context and code take is admitted
beside it, and shown as overhead.

   gpuslice lease acquire --vram 7G --ttl 2h
   gpuslice lease acquire --vram 64M --ttl 2m --device 1
   gpuslice lease acquire --vram 7G --ttl 2h --reserve
   gpuslice lease acquire --vram 7G --linger 1m
   gpuslice lease acquire --vram 7G --ttl 2h --json | jq -r .address

With --reserve the bytes are taken from the card now, and held: nobody else can have them, whatever is
promised to how many. With --linger the lease ends so long after its last client has left.

It prints where the session is, also for other machines if the host serves them, and which file has its
token. That file is its owner's alone; who shows the token is a client of the lease. A client on
another machine (--address) is shown the token itself.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "vram", Aliases: []string{"limit"}, Usage: "memory for the clients: `SIZE`, such as 7G or 64MiB (required)"},
			&cli.StringFlag{Name: "ttl", Usage: "how long it lives: `DURATION`, such as 90s, 30m, 12h or 7d; never, or 0, for as long as any slice may live", Value: "never"},
			&cli.StringFlag{Name: "device", Usage: "UUID or index of the `DEVICE` (default: the one with the most room)"},
			&cli.StringFlag{Name: "tenant", Usage: "account it to this `NAME`; operators alone may"},
			&cli.BoolFlag{Name: "reserve", Usage: "take the memory from the card now, and hold it"},
			&cli.StringFlag{Name: "linger", Usage: "end it `DURATION` after its last client has left"},
			&cli.IntFlag{Name: "clients", Usage: "how many `CLIENTS` may be connected at one time (default: max_clients of the configuration)"},
			leaseJSONFlag(),
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			request, err := leaseRequest(c)
			if err != nil {
				return asMisuse(err)
			}
			l, err := leases(c).Acquire(c.Context, request)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return show.JSON(c.App.Writer, l)
			}
			w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "lease\t%s\naddress\t%s\n", l.ID, l.Address)
			if l.RemoteAddress != "" && l.RemoteAddress != l.Address {
				fmt.Fprintf(w, "remote\t%s\n", l.RemoteAddress)
			}
			fmt.Fprintf(w, "token\t%s\ndevice\t%s %s\nvram\t%s\noverhead\t%s\nexpires\t%s\n",
				cmp.Or(l.TokenFile, l.Token), l.Device, l.DeviceName, api.FormatSize(l.VRAM), api.FormatSize(l.Overhead), expiry(l))
			return w.Flush()
		},
	}
}

func leaseRequest(c *cli.Context) (r lease.Request, err error) {
	if !c.IsSet("vram") {
		return r, errors.New("--vram is missing: how much may the lease's clients allocate? For example --vram 7G")
	}
	if r.VRAM, err = api.ParseSize(c.String("vram")); err != nil {
		return r, fmt.Errorf("--vram: %w", err)
	}
	if r.TTL, err = api.ParseTTL(c.String("ttl")); err != nil {
		return r, fmt.Errorf("--ttl: %w", err)
	}
	if c.IsSet("linger") {
		linger, err := api.ParseDuration(c.String("linger"))
		if err != nil || linger < 0 || linger > api.MaxTTL {
			return r, fmt.Errorf("--linger %q: a duration such as \"0s\", \"90s\" or \"30m\" is accepted", c.String("linger"))
		}
		r.Linger = &linger
	}
	if c.IsSet("clients") && c.Int("clients") < 1 {
		return r, fmt.Errorf("--clients %d: 1 and more are accepted", c.Int("clients"))
	}
	r.Tenant, r.Reserve, r.Clients = c.String("tenant"), c.Bool("reserve"), c.Int("clients")
	if r.Device, err = deviceNamed(c, c.String("device")); err != nil {
		return r, fmt.Errorf("--device: %w", err)
	}
	return r, nil
}

func leaseRenewCommand() *cli.Command {
	return &cli.Command{
		Name:      "renew",
		Usage:     "extend or shorten a lease's time",
		ArgsUsage: "LEASE DURATION",
		Description: `LEASE may be the beginning of an id. DURATION is one such as 90s, 30m, 12h or 7d. An expired lease is not renewed.

   gpuslice lease renew lease-0f3c5e2a9b8d7614 2h`,
		Flags:        []cli.Flag{leaseJSONFlag()},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 2, "lease renew takes one LEASE and one DURATION, such as `gpuslice lease renew LEASE 1h`")
			if err != nil {
				return err
			}
			ttl, err := api.ParseTTL(words[1])
			if err != nil {
				return asMisuse(err)
			}
			if ttl == 0 {
				return misuse("%q is no time for a lease: a duration such as \"90s\", \"30m\" or \"12h\" is accepted", words[1])
			}
			l, err := leaseNamed(c, words[0], func(s lease.Service, id string) (*lease.Lease, error) { return s.Renew(c.Context, id, ttl) })
			return printLease(c, l, err)
		},
	}
}

func leaseDropCommand() *cli.Command {
	return &cli.Command{
		Name:      "drop",
		Aliases:   []string{"rm"},
		Usage:     "end leases",
		ArgsUsage: "LEASE…",
		Description: `LEASE may be the beginning of an id. Its session ends, whatever its clients do; when the command returns its memory
is free.

   gpuslice lease drop lease-0f3c5e2a9b8d7614`,
		Flags:        []cli.Flag{leaseJSONFlag()},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			return forEachArgument(c, "lease drop takes LEASES: `gpuslice lease list` lists them", func(id string) error {
				l, err := leaseNamed(c, id, func(s lease.Service, id string) (*lease.Lease, error) { return s.Drop(c.Context, id) })
				if err != nil || !c.Bool("json") {
					return err
				}
				return show.JSON(c.App.Writer, l)
			})
		},
	}
}

func leaseListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Aliases:   []string{"ls"},
		Usage:     "list your leases; root sees all",
		ArgsUsage: " ",
		Description: `CHARGED is what a lease holds now, with what the driver holds for its broker; it stays within VRAM and
OVERHEAD together.

   gpuslice lease list
   gpuslice lease list -q --filter tenant=a` + fmt.Sprintf(listHelp, "Charged"),
		Flags:        append(append(listFlags(leaseTable(nil)), watchFlags()...), &cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "list leases that have ended, too"}),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return misuse("lease list takes no argument; `gpuslice lease show %s` shows one lease", c.Args().First())
			}
			ask := leases(c).List
			if c.Bool("all") {
				ask = leases(c).ListAll
			}
			return list(c, leaseTable(indices(c.Context, connect(c))), ask)
		},
	}
}

func leaseShowCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Aliases:   []string{"inspect"},
		Usage:     "show everything about leases, as JSON",
		ArgsUsage: "LEASE…",
		Description: `LEASE may be the beginning of an id. It also shows why a lease has ended, for a while.

   gpuslice lease show lease-0f3c5e2a9b8d7614`,
		Flags:        []cli.Flag{alreadyJSONFlag},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			return forEachArgument(c, "lease show takes LEASES: `gpuslice lease list` lists them", func(id string) error {
				l, err := leaseNamed(c, id, func(s lease.Service, id string) (*lease.Lease, error) { return s.Show(c.Context, id) })
				if err != nil {
					return err
				}
				return show.JSON(c.App.Writer, l)
			})
		},
	}
}

func leases(c *cli.Context) lease.Service {
	return lease.Service{
		Socket:  socketOf(c, "lease-socket", api.DefaultConfig, func(file config.Config) string { return file.Leases.Socket }),
		Address: c.String("address"),
		TLS:     lease.TLS{Certificate: c.String("certificate"), Key: c.String("key"), CA: c.String("ca")},
	}
}

// overheads returns the overheads of the user's leases by id, for those of runs that are leases.
func overheads(ctx context.Context, c *cli.Context, runs []api.Run) map[string]uint64 {
	if !slices.ContainsFunc(runs, func(r api.Run) bool { return strings.HasPrefix(r.Slice, "lease-") }) {
		return nil
	}
	all, err := leases(c).ListAll(ctx)
	if err != nil {
		fmt.Fprintf(c.App.ErrWriter, "gpuslice: what is suggested for leases contains their overhead: %v\n", err)
	}
	of := make(map[string]uint64)
	for _, l := range all {
		of[l.ID] = l.Overhead
	}
	return of
}

// leaseNamed calls do with id, or with that of the only lease of the user that it begins.
func leaseNamed(c *cli.Context, id string, do func(s lease.Service, id string) (*lease.Lease, error)) (*lease.Lease, error) {
	service := leases(c)
	l, err := do(service, id)
	var none *lease.Error
	if !errors.As(err, &none) || none.Code != lease.NotFound {
		return l, err
	}
	all, failed := service.ListAll(c.Context)
	if failed != nil {
		return nil, failed
	}
	for _, active := range []bool{true, false} {
		var of []api.Slice
		for _, l := range all {
			if active == (l.State == lease.Active) {
				of = append(of, api.Slice{ID: l.ID})
			}
		}
		whole, found := show.Find(of, id, show.Means)
		if found == nil {
			return do(service, whole)
		}
		if !errors.Is(found, api.ErrNotFound) {
			return nil, found
		}
	}
	return nil, err
}

func printLease(c *cli.Context, l *lease.Lease, err error) error {
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return show.JSON(c.App.Writer, l)
	}
	return printLeases(c, []*lease.Lease{l})
}

func printLeases(c *cli.Context, all []*lease.Lease) error {
	return leaseTable(indices(c.Context, connect(c))).Print(c.App.Writer, all, false)
}

// leaseTable lists leases, on devices with these indices. For root, which sees those of all users, it has a column for the user.
func leaseTable(of show.Indices) *table.Table[*lease.Lease] {
	sized := func(head, field string, of func(*lease.Lease) uint64) table.Column[*lease.Lease] {
		return table.Column[*lease.Lease]{Head: head, Field: field, Number: of, Text: func(l *lease.Lease) string { return api.FormatSize(of(l)) }}
	}
	return &table.Table[*lease.Lease]{
		ID:     func(l *lease.Lease) string { return l.ID },
		Object: func(l *lease.Lease) any { return l },
		Columns: []table.Column[*lease.Lease]{
			{Head: "LEASE", Field: "ID", Text: func(l *lease.Lease) string { return l.ID }},
			{Head: "UID", Field: "UID", Wide: os.Geteuid() != 0, Number: func(l *lease.Lease) uint64 { return uint64(l.UID) },
				Text: func(l *lease.Lease) string { return strconv.FormatUint(uint64(l.UID), 10) }},
			{Head: "DEVICE", Field: "Device", Text: func(l *lease.Lease) string { return l.Device }, Short: func(l *lease.Lease) string { return of.Name(l.Device) }},
			sized("VRAM", "VRAM", func(l *lease.Lease) uint64 { return l.VRAM }),
			sized("OVERHEAD", "Overhead", func(l *lease.Lease) uint64 { return l.Overhead }),
			sized("CHARGED", "Charged", func(l *lease.Lease) uint64 { return l.Charged }),
			{Head: "EXPIRES", Field: "Expires", Text: expiry, Number: func(l *lease.Lease) uint64 {
				if l.Expires == nil {
					return math.MaxUint64
				}
				return uint64(max(l.Expires.UnixNano(), 0))
			}},
			{Head: "STATE", Field: "State", Text: func(l *lease.Lease) string { return string(l.State) }, Alarm: func(l *lease.Lease) bool { return l.State != lease.Active }},
			{Head: "TENANT", Field: "Tenant", Wide: true, Text: func(l *lease.Lease) string { return l.Tenant }},
			{Head: "ACQUIRED", Field: "Acquired", Wide: true, Number: func(l *lease.Lease) uint64 { return uint64(max(l.Acquired.UnixNano(), 0)) },
				Text: func(l *lease.Lease) string { return l.Acquired.Local().Format(time.DateTime) }},
			{Head: "COMPUTE", Field: "Compute", Wide: true, Text: func(l *lease.Lease) string { return l.ComputeCapability }},
			{Head: "ADDRESS", Field: "Address", Wide: true, Text: func(l *lease.Lease) string { return l.Address }},
		},
		Filters: []table.Filter[*lease.Lease]{
			{Key: "id", Matches: func(l *lease.Lease, value string) bool { return value != "" && strings.HasPrefix(l.ID, value) }},
			table.Is("tenant", func(l *lease.Lease) string { return l.Tenant }),
			table.Is("uid", func(l *lease.Lease) string { return strconv.FormatUint(uint64(l.UID), 10) }),
			{Key: "device", Matches: func(l *lease.Lease, value string) bool {
				return value != "" && of.Is(value, l.Device)
			}},
			table.OneOf("state", func(l *lease.Lease) string { return string(l.State) }, string(lease.Active), string(lease.Ended), string(lease.Failed)),
		},
	}
}

func expiry(l *lease.Lease) string {
	if l.Expires == nil {
		return "never"
	}
	return "in " + api.FormatTTL(max(time.Until(*l.Expires).Round(time.Second), 0))
}
