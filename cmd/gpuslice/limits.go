// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/user"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func limitsCommand() *cli.Command {
	return &cli.Command{
		Name:      "limits",
		Usage:     "show what your sessions may have, and what is left",
		ArgsUsage: " ",
		Description: `LIMIT is what your sessions and leases may have together on a device ([[sessions.limits]] of the
configuration), or one of them if that is less. GIVEN is what they have now. LEFT is the largest quota that you can get now:
the lesser of what is left of the limit and what the device has free. An elastic session may get more, as idle
ones make room for it. Users of the control socket, such as root, have no limit of their own.

   gpuslice limits
   sudo gpuslice limits --user alice
   gpuslice limits --json | jq '.[].devices[].left'` + fmt.Sprintf(listHelp, "Left"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "user", Usage: "show those of this `USER`, by name or number; on the control socket alone"},
		}, append(listFlags(&show.LimitTable), watchFlags()...)...),
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			if err := takesNothing(c); err != nil {
				return err
			}
			var who *api.User
			if c.IsSet("user") {
				var err error
				if who, err = userNamed(c.String("user")); err != nil {
					return misuse("--user %q: %w", c.String("user"), err)
				}
			}
			enforcer := connect(c)
			return list(c, &show.LimitTable, func(ctx context.Context) ([]show.UserLimit, error) {
				limits, err := enforcer.Limits(ctx, who)
				if err != nil {
					return nil, err
				}
				return show.LimitRows(limits), nil
			})
		},
	}
}

// userNamed finds a user of the host by name or number.
func userNamed(name string) (*api.User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("the host's user database does not know it: a name or number that getent passwd lists is accepted")
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("cannot look up the user's groups: %w", err)
	}
	found := &api.User{}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	found.UID = uint32(uid)
	for _, group := range groups {
		if gid, err := strconv.ParseUint(group, 10, 32); err == nil {
			found.Groups = append(found.Groups, uint32(gid))
		}
	}
	return found, err
}
