// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say why a slice was refused memory, and what to do about it",
		ArgsUsage: "ID",
		Description: `The last refusal of a slice: the request, the holders of memory when it was reported, and the quota
that it needed. ID may be the beginning of a slice's or a container's id, or a name, also of a slice that
has ended.

   gpuslice explain 3f2a91c0d5e8`,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON: the run of the slice with its refusal, as the control API has it"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 1, "explain takes one ID: `gpuslice recommend` lists them")
			if err != nil {
				return err
			}
			runs, err := connect(c).History(c.Context)
			if err != nil {
				return err
			}
			run, err := show.FindRun(runs, words[0])
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return show.JSON(c.App.Writer, run)
			}
			var now api.Slice
			if run.Ended == nil {
				now, err = connect(c).Slice(c.Context, run.Slice)
			}
			if err != nil && !errors.Is(err, api.ErrNotFound) {
				return err
			}
			return show.Explain(c.App.Writer, run, now, indices(c.Context, connect(c)))
		},
	}
}

func recommendCommand() *cli.Command {
	return &cli.Command{
		Name:      "recommend",
		Usage:     "suggest quotas",
		ArgsUsage: "[ID]",
		Description: `For each slice that runs or ran: its QUOTA, the most that it held (PEAK), the number of refusals, and
the SUGGESTED quota, or --vram of a lease, without its overhead. The last 1024 runs are known.

   gpuslice recommend
   gpuslice recommend --by image
   gpuslice recommend --filter refused=true` + fmt.Sprintf(listHelp, "Suggested"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "by", Value: "slice", Usage: "sum up by `WHAT`: slice, image, tenant or pool"},
			leaseSocketFlag(),
		}, listFlags(&show.NeedTable)...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := nonFlags(c)
			if err != nil {
				return err
			}
			if len(words) > 1 {
				return misuse("recommend takes one ID, or none for all slices")
			}
			of := map[string]func(api.Run, api.RunUse) string{
				"slice":  func(r api.Run, _ api.RunUse) string { return r.Slice },
				"image":  func(r api.Run, _ api.RunUse) string { return r.Image },
				"tenant": func(r api.Run, _ api.RunUse) string { return r.Tenant },
				"pool":   func(_ api.Run, d api.RunUse) string { return d.Pool },
			}[c.String("by")]
			if of == nil {
				return misuse("--by %q: slice, image, tenant and pool are accepted", c.String("by"))
			}
			enforcer := connect(c)
			return list(c, &show.NeedTable, func(ctx context.Context) ([]show.Need, error) {
				runs, err := enforcer.History(ctx)
				if err == nil && len(words) == 1 {
					var one api.Run
					one, err = show.FindRun(runs, words[0])
					runs = slices.DeleteFunc(runs, func(r api.Run) bool { return r.Slice != one.Slice })
				}
				return show.Needs(runs, of, overheads(ctx, c, runs), indices(ctx, enforcer)), err
			})
		},
	}
}
