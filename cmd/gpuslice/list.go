// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func psCommand() *cli.Command {
	return &cli.Command{
		Name:      "ps",
		Usage:     "list the slices of this host",
		ArgsUsage: " ",
		Description: `USED is what programs asked for, OVERHEAD what the driver holds for them beyond that; both
together stay within LIMIT. A slice that was released while processes were alive is shown until they exit: it counts
for what they hold, and gets nothing more. TENANT and EXPIRES are there if a slice has one. The wide table has the
user of a session, the command line of each slice's first process, and the slice's age.

   gpuslice ps
   gpuslice ps --filter tenant=a --filter over=true --sort -used
   gpuslice ps -q --filter pool=llm
   gpuslice ps --format 'table {{.ID}}\t{{.Used}}\t{{.Peak}}'
   gpuslice ps --watch -o wide
   gpuslice ps --sort -age --format 'table {{.ID}}\t{{.User}}\t{{.Command}}'` + fmt.Sprintf(listHelp, "Used"),
		Flags:        append(listFlags(&show.SliceTable), watchFlags()...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return misuse("ps takes no argument; `gpuslice inspect %s` shows one slice", c.Args().First())
			}
			enforcer, names := connect(c), make(map[uint32]string)
			return list(c, &show.SliceTable, func(ctx context.Context) ([]show.SliceUse, error) {
				all, err := holders(ctx, enforcer)
				rows := show.SliceRows(all)
				for i := range rows {
					if uid := rows[i].UID; uid != nil {
						rows[i].User = userName(*uid, names)
					}
				}
				return rows, err
			})
		},
	}
}

// holders returns all slices that count on a device: the active ones, and then the released ones with live processes.
func holders(ctx context.Context, enforcer *client.Client) ([]api.Slice, error) {
	active, err := enforcer.SlicesWithCommands(ctx)
	if err != nil {
		return nil, err
	}
	released, err := enforcer.Released(ctx)
	return append(active, released...), err
}

// userName returns a user's name on this host, or number without one, and remembers it in names.
func userName(uid uint32, names map[uint32]string) string {
	name, known := names[uid]
	if !known {
		name = strconv.FormatUint(uint64(uid), 10)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		names[uid] = name
	}
	return name
}

// alreadyJSONFlag accepts --json for commands that always print JSON.
var alreadyJSONFlag = &cli.BoolFlag{Name: "json", Usage: "print JSON, as is done without it"}

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show everything about slices: their processes, and their last refusal",
		ArgsUsage: "ID…",
		Description: `ID may be the beginning of a slice's or a container's id, a name (NAME, POD/NAME,
NAMESPACE/POD/NAME), or a pod, namespace, image or claim that one slice alone has.

   gpuslice inspect 3f2a91c0d5e8
   gpuslice inspect --json 3f2a91c0d5e8 | jq .processes`,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON, as the control API has it"}},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			return forEachArgument(c, "inspect takes IDs: `gpuslice ps` lists them", func(id string) error { return inspect(c, id) })
		},
	}
}

func inspect(c *cli.Context, id string) error {
	slice, err := doByName(c, id, show.Names, func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
		return enforcer.Slice(ctx, id)
	})
	if errors.Is(err, api.ErrNotFound) {
		if released, ok := findReleased(c, id); ok {
			slice, err = released, nil
		}
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return show.JSON(c.App.Writer, slice)
	}
	return show.Slice(c.App.Writer, slice)
}

func findReleased(c *cli.Context, id string) (api.Slice, bool) {
	released, err := connect(c).Released(c.Context)
	if err != nil {
		return api.Slice{}, false
	}
	whole, err := show.Find(released, id, show.Names)
	i := slices.IndexFunc(released, func(s api.Slice) bool { return s.ID == whole })
	if err != nil || i < 0 {
		return api.Slice{}, false
	}
	return released[i], true
}

// doByName calls do with id, or with the id of the slice that it names by means (show.Names or show.Means).
func doByName(c *cli.Context, id string, means func(string, show.Named) show.Meaning, do func(context.Context, *client.Client, string) (api.Slice, error)) (api.Slice, error) {
	enforcer := connect(c)
	var none error
	if api.CheckID(id) == nil { // else it can be a name, or an id as tables show it
		slice, err := do(c.Context, enforcer, id)
		if !errors.Is(err, api.ErrNotFound) {
			return slice, err
		}
		none = fmt.Errorf("%w: `gpuslice ps` lists what there is", err)
	}
	all, err := enforcer.Slices(c.Context)
	if err != nil {
		return api.Slice{}, err
	}
	whole, err := show.Find(all, id, means)
	if errors.Is(err, api.ErrNotFound) && none != nil {
		return api.Slice{}, none // use the enforcer's error, which considers access rights
	}
	if err != nil {
		return api.Slice{}, err
	}
	return do(c.Context, enforcer, whole)
}
