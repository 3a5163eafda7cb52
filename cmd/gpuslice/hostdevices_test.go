// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
	"github.com/gpuslice/gpuslice/test/expect"
)

type twoDevices struct {
	lists
	changed *api.ChangeRequest
}

func (twoDevices) Limits(context.Context, *api.User) (api.UserLimits, error) {
	return api.UserLimits{Devices: []api.DeviceLimit{{Device: cardA, Index: 0}, {Device: "GPU-1b2c3d4e-0000-1111-2222-333344446666", Index: 1}}}, nil
}

func (d twoDevices) Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	*d.changed = r
	return d.Slice(ctx, id)
}

func TestDeviceIsAcceptedInTheFormThatTablesShow(t *testing.T) {
	var changed api.ChangeRequest
	socket, shown := listen(t, twoDevices{lists{holds{all: []api.Slice{{ID: "a"}}}}, &changed}), show.Indices{cardA: 0}.Name(cardA)
	expect.True(t, strings.HasPrefix(shown, "0:GPU-"), shown)
	for args, want := range map[string]string{
		"recommend --filter device=" + shown:             shown + " ",
		"explain a":                                      "On " + shown + " it held",
		"set a --vram 1G --device " + shown:              "a ",
		"set a --drop " + strings.ToLower(shown):         "a ",
		"run --vram 1G --device 7:GPU-1 -- true":         "--device: there is no device 7:GPU-1: `gpuslice devices` lists them",
		"events --filter device=0:MIG-1":                 "there is no device 0:MIG-1",
		"lease acquire --vram 1G --device 2" + shown[1:]: "there is no device 2",
	} {
		out, said, _ := cliRun(append([]string{"--socket", socket}, strings.Fields(args)...)...)
		expect.Contains(t, out+said, want, args)
		if len(changed.Quotas)+len(changed.Drop) > 0 {
			expect.True(t, len(changed.Quotas) == 1 && changed.Quotas[0].Device == cardA || len(changed.Drop) == 1 && changed.Drop[0] == cardA, args, changed)
		}
		changed = api.ChangeRequest{}
	}
}
