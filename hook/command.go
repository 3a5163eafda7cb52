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

// Name is the program's, by which its entries among a bundle's hooks are known.
const Name = "gpuslice-hook"

// Command is a command line of gpuslice-hook.
type Command struct {
	Stage, Config, Report, Timing string
	Grant                         annotations.Grant
}

// ParseCommand does without package flag, which would print several lines where a runtime shows one. A command line that is not one has no
// stage.
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

// granted is what the hooks of a bundle give the container, all together: a claim's CDI device brings a hook, and a container may have
// several claims. Each run of the hook finds the same, so the first registers the container with all of it. What is in a bundle's hooks
// is run by root, so it is root's word as is a command line; own is that of this run, should the bundle not have it.
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
