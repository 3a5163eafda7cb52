// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
		Description: `The last refusal is explained: what was asked, who held what at that moment, and the
quota that would have done. ID may be the beginning of a slice's or a container's id, or a name,
also of one that has ended.

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
			return show.Explain(c.App.Writer, run)
		},
	}
}

func recommendCommand() *cli.Command {
	return &cli.Command{
		Name:      "recommend",
		Usage:     "list which quotas would have done",
		ArgsUsage: "[ID]",
		Description: `Of each slice that runs or ran: its QUOTA, the most that it held (PEAK), how often it was
refused, and the quota that WOULD DO for all of it. The last 1024 runs are known.

   gpuslice recommend
   gpuslice recommend --by image
   gpuslice recommend --filter refused=true` + fmt.Sprintf(listHelp, "WouldDo"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "by", Value: "slice", Usage: "sum up by `WHAT`: slice, image, tenant or pool"},
		}, listFlags(&show.NeedTable)...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := words(c)
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
				return show.Needs(runs, of), err
			})
		},
	}
}
