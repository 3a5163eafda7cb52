// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/annotations"
)

// Name is the name of the program, also in a bundle's hooks.
const Name = "gpuslice-hook"

// Command is a parsed command line of gpuslice-hook.
type Command struct {
	Stage, Config, Report, Timing string
	Grant                         annotations.Grant
}

// ParseCommand parses a command line. For an invalid one it returns an empty Stage. It avoids package flag, which prints several
// lines, since a runtime shows only one.
func ParseCommand(args []string) Command {
	c := Command{Config: api.DefaultConfig}
	pool := ""
	flags := map[string]*string{"--config": &c.Config, "--report": &c.Report, "--timing": &c.Timing, "--pool": &pool, "--tenant": &c.Grant.Tenant}
	for len(args) >= 2 && flags[args[0]] != nil {
		*flags[args[0]] = args[1]
		if args[0] == "--pool" {
			c.Grant.Pools = append(c.Grant.Pools, pool)
		}
		args = args[2:]
	}
	if len(args) == 1 {
		c.Stage = args[0]
	}
	return c
}

// granted returns the union of the grants in the bundle's hooks and of own, the grant of this run. A container may have several
// claims, and each claim's CDI device adds a hook. The first run registers the container with all of them. Root runs the hooks of
// a bundle, so they are as trusted as a command line.
func granted(hooks []specs.Hook, own annotations.Grant) (g annotations.Grant, err error) {
	all := []annotations.Grant{own}
	for _, h := range hooks {
		if filepath.Base(h.Path) == Name && len(h.Args) > 0 {
			all = append(all, ParseCommand(h.Args[1:]).Grant)
		}
	}
	for _, one := range all {
		if one.Tenant != "" && g.Tenant != "" && one.Tenant != g.Tenant {
			return g, fmt.Errorf("the container's claims are of the tenants %s and %s: one tenant is accepted", g.Tenant, one.Tenant)
		}
		if one.Tenant != "" {
			g.Tenant = one.Tenant
		}
		for _, pool := range one.Pools {
			if !slices.Contains(g.Pools, pool) {
				g.Pools = append(g.Pools, pool)
			}
		}
	}
	return g, nil
}
