// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func poolCommand() *cli.Command {
	return &cli.Command{
		Name:  "pool",
		Usage: "groups of slices under one common quota",
		Description: `Slices that name a pool draw on its quota together, and each on its own, if it has one.

   gpuslice pool create llm --vram 40G
   docker run --runtime=gpuslice --annotation gpuslice.pool=llm IMAGE
   gpuslice run --pool llm --vram 10G -- python serve.py

A pool stays until it is deleted, also when the host is restarted.`,
		OnUsageError: usageError(exitUsage),
		Subcommands:  []*cli.Command{poolListCommand(), poolShowCommand(), poolCreateCommand(), poolSetCommand(), poolDeleteCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return noCommand("pool", c.Args().First(), c.Command.Subcommands)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

var (
	poolJSONFlag = &cli.BoolFlag{Name: "json", Usage: "print JSON, as the control API has it"}
	poolFlags    = []cli.Flag{
		&cli.StringFlag{Name: "vram", Aliases: []string{"limit"}, Usage: "the quota: `SIZE`, such as 40G, or 50% of the device (required)"},
		&cli.StringSliceFlag{Name: "device", Usage: "UUID or index of the `DEVICE` that the quota is for, or all; may be repeated (default: every device that has none of its own)"},
		poolJSONFlag,
	}
)

func poolListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Aliases:   []string{"ls"},
		Usage:     "list the pools of this host",
		ArgsUsage: " ",
		Description: `USED is what the members' programs asked for, OVERHEAD what the driver holds for them beyond that;
both together stay within LIMIT.

   gpuslice pool list
   gpuslice pool list --filter over=true
   gpuslice pool list --json | jq -r '.[].members[]'` + fmt.Sprintf(listHelp, "Name"),
		Flags:        append(listFlags(&show.PoolTable), watchFlags()...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return misuse("pool list takes no argument; `gpuslice pool show %s` shows one pool", c.Args().First())
			}
			enforcer := connect(c)
			return list(c, &show.PoolTable, func(ctx context.Context) ([]show.PoolUse, error) {
				pools, err := enforcer.Pools(ctx)
				return show.PoolRows(pools), err
			})
		},
	}
}

func poolShowCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Aliases:   []string{"inspect"},
		Usage:     "show everything about one pool, as JSON",
		ArgsUsage: "POOL",
		Description: `Its quotas, what its members hold on each device, and who they are.

   gpuslice pool show llm`,
		Flags:        []cli.Flag{alreadyJSONFlag},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			name, err := poolName(c, "show")
			if err != nil {
				return err
			}
			pool, err := connect(c).Pool(c.Context, name)
			if err != nil {
				return err
			}
			return show.JSON(c.App.Writer, pool)
		},
	}
}

func poolCreateCommand() *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "make a pool",
		ArgsUsage: "POOL",
		Description: `The pool's quota counts on the devices from now on, and its members' do not: they are parts of it.

   gpuslice pool create llm --vram 40G
   gpuslice pool create llm --vram 50% --device 0 --device 1
   gpuslice pool create night --vram 10G --tenant physics --ttl 12h \
      --label "the nightly runs"
   gpuslice pool create notebooks --vram 40G --elastic

A pool of a tenant is within the bounds of [tenants.NAME], and its members are that tenant's. The
members of an elastic pool are elastic: it counts only while one of them is on the device. The same
command again changes nothing.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "tenant", Usage: "`TENANT` to account the pool and its members to (default: each member's own)"},
			&cli.StringFlag{Name: "ttl", Value: "never", Usage: "how long each member may run: `DURATION`, such as 90s, 30m or 12h"},
			&cli.StringFlag{Name: "label", Usage: "`TEXT` that describes the pool"},
			&cli.BoolFlag{Name: "elastic", Usage: "while its members are idle their VRAM may be moved to host memory; it comes back with their next CUDA call"},
			&cli.IntFlag{Name: "priority", Usage: "of elastic slices and pools the one with the lowest `NUMBER` is moved first (-1000 to 1000)"},
		}, poolFlags...),
		OnUsageError: usageError(exitUsage),
		Action:       func(c *cli.Context) error { return changePool(c, "create") },
	}
}

func poolSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change the quota of a pool",
		ArgsUsage: "POOL",
		Description: `The quota counts from the next allocation on; members that hold more than that keep it and get
nothing, which list shows as "over".

   gpuslice pool set llm --vram 60G
   gpuslice pool set llm --vram 20G --device 1
   gpuslice pool set llm --vram 20G --device all`,
		Flags:        poolFlags,
		OnUsageError: usageError(exitUsage),
		Action:       func(c *cli.Context) error { return changePool(c, "set") },
	}
}

func poolDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Aliases:   []string{"rm"},
		Usage:     "end a pool that has no members",
		ArgsUsage: "POOL",
		Description: `A pool that has members is not deleted: their quota must not become none.

   gpuslice pool delete llm`,
		Flags:        []cli.Flag{poolJSONFlag},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			name, err := poolName(c, "delete")
			if err != nil {
				return err
			}
			pool, err := connect(c).DeletePool(c.Context, name)
			if err != nil || !c.Bool("json") {
				return err
			}
			return show.JSON(c.App.Writer, pool)
		},
	}
}

// changePool creates a pool, or sets its quota, and prints its new state.
func changePool(c *cli.Context, verb string) error {
	name, err := poolName(c, verb)
	if err != nil {
		return err
	}
	if !c.IsSet("vram") {
		return misuse("--vram is missing: how much may the members hold together? For example --vram 40G")
	}
	quotas, err := quotaFlags(c)
	if err != nil {
		return asMisuse(err)
	}
	enforcer := connect(c)
	everywhere := slices.Equal(c.StringSlice("device"), []string{everyDevice})
	r, do := api.PoolRequest{Quotas: quotas}, enforcer.SetPool
	if verb == "create" {
		do, r.Tenant, r.Label = enforcer.CreatePool, c.String("tenant"), c.String("label")
		r.Elastic, r.Priority = c.Bool("elastic"), c.Int("priority")
		if r.TTL, err = api.ParseTTL(c.String("ttl")); err != nil {
			return misuse("--ttl: %w", err)
		}
	} else if everywhere {
		pool, err := enforcer.Pool(c.Context, name)
		if err != nil {
			return err
		}
		r.Quotas = slices.Clone(pool.Quotas)
		for i := range r.Quotas {
			r.Quotas[i].Bytes, r.Quotas[i].Percent = quotas[0].Bytes, quotas[0].Percent
		}
	}
	var pool api.Pool
	err = client.AwaitRoom(c.Context, func() (err error) {
		pool, err = do(c.Context, name, r)
		return err
	})
	if err != nil {
		return err
	}
	if !everywhere {
		noteOwn(c, pool.Quotas, r.Quotas)
	}
	if c.Bool("json") {
		return show.JSON(c.App.Writer, pool)
	}
	return show.Pools(c.App.Writer, []api.Pool{pool}, false)
}

func poolName(c *cli.Context, verb string) (string, error) {
	words, err := arguments(c, 1, "pool "+verb+" takes one POOL: `gpuslice pool list` lists them")
	if err != nil {
		return "", err
	}
	return words[0], asMisuse(api.CheckPoolName(words[0]))
}
