// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

// indices returns NVML's index of each device by UUID. It asks what every user may ask of an enforcer; without an answer it is empty.
func indices(ctx context.Context, enforcer *client.Client) show.Indices {
	all := make(show.Indices)
	limits, _ := enforcer.Limits(ctx, nil)
	for _, d := range limits.Devices {
		all[d.Device] = d.Index
	}
	return all
}

// deviceNamed returns the UUID of a device named as tables show it, by index and the beginning of its UUID. It returns any other name as
// it is.
func deviceNamed(c *cli.Context, name string) (string, error) {
	index, begin, shown := strings.Cut(name, ":")
	if !shown || begin == "" {
		return name, nil
	}
	all := indices(c.Context, connect(c))
	if len(all) == 0 { // a session without the host's enforcer
		found, _ := nvmlDevices()
		for _, d := range found {
			all[d.UUID] = d.Index
		}
	}
	for uuid, i := range all {
		if strconv.Itoa(i) == index && strings.HasPrefix(strings.ToLower(uuid), strings.ToLower(begin)) {
			return uuid, nil
		}
	}
	return "", api.Errorf(api.CodeNoDevice, "there is no device %s: `gpuslice devices` lists them, and `gpuslice limits` for other users", name)
}

// devicesNamed is deviceNamed for the values of a flag.
func devicesNamed(c *cli.Context, flag string) ([]string, error) {
	var all []string
	for _, name := range c.StringSlice(flag) {
		uuid, err := deviceNamed(c, name)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		all = append(all, uuid)
	}
	return all, nil
}
