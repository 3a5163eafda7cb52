// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

func setCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change the quota or the time to live of a running slice",
		ArgsUsage: "ID",
		Description: `ID may be the beginning of a slice's or a container's id, or a name. A quota counts from the next allocation
on; a slice that holds more than that keeps it and gets nothing, which ps shows as "over".

Without --device the quota is that on every device that has none of its own; --device all changes those, too, and
--drop makes a device's own one go. On a device that the slice does not use yet a quota is given at once, or
refused, like when a slice begins.

   gpuslice set 3f2a91c0d5e8 --vram 6G
   gpuslice set 3f2a91c0d5e8 --vram 50% --device 0
   gpuslice set 3f2a91c0d5e8 --vram 50% --device all
   gpuslice set 3f2a91c0d5e8 --drop 0
   gpuslice set 3f2a91c0d5e8 --vram 6G --ttl 2h`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "vram", Aliases: []string{"limit"}, Usage: "the quota: `SIZE`, such as 4G, 512MiB, or 50% of the device"},
			&cli.StringSliceFlag{Name: "device", Usage: "UUID or index of the `DEVICE` that the quota is for, or all; may be repeated"},
			&cli.StringSliceFlag{Name: "drop", Usage: "UUID or index of a `DEVICE`: drop its own quota, so that the quota for all devices applies there; may be repeated"},
			&cli.StringFlag{Name: "ttl", Usage: "it expires after this `DURATION` from now, such as 90s, 30m, 12h or 7d; never, or 0, for no end"},
			&cli.BoolFlag{Name: "json", Usage: "print the slice as JSON, as the control API has it"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 1, "set takes one ID: `gpuslice ps` lists them")
			if err != nil {
				return err
			}
			request, err := changeRequest(c)
			if err != nil {
				return asMisuse(err)
			}
			everywhere := slices.Equal(c.StringSlice("device"), []string{everyDevice})
			return changeSlice(c, words[0], func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
				r := request
				if everywhere {
					slice, err := enforcer.Slice(ctx, id)
					if err != nil {
						return slice, err
					}
					r.Quotas, r.Drop = inPlaceOfAll(slice.Quotas, r.Quotas[0])
				}
				var slice api.Slice
				err := client.AwaitRoom(ctx, func() (err error) {
					slice, err = enforcer.Change(ctx, id, r)
					return err
				})
				if err == nil && !everywhere {
					noteOwn(c, slice.Quotas, request.Quotas)
				}
				return slice, err
			})
		},
	}
}

// everyDevice is the value of --device for a quota on all devices that also replaces those of single devices.
const everyDevice = "all"

// inPlaceOfAll returns the changes that make q the only quota of a slice or pool with the quotas has. Quotas of single devices
// are dropped, or set to q if there is none on all devices.
func inPlaceOfAll(has []api.Quota, q api.Quota) (quotas []api.Quota, drop []string) {
	onAll := func(q api.Quota) bool { return q.Device == api.AllDevices }
	if q.Device = api.AllDevices; len(has) == 0 || slices.ContainsFunc(has, onAll) {
		quotas = []api.Quota{q}
	}
	for _, own := range has {
		switch {
		case onAll(own):
		case len(quotas) == 1 && onAll(quotas[0]):
			drop = append(drop, own.Device)
		default:
			q.Device = own.Device
			quotas = append(quotas, q)
		}
	}
	return quotas, drop
}

// noteOwn names the devices that a quota on all devices did not change.
func noteOwn(c *cli.Context, has, asked []api.Quota) {
	if !slices.ContainsFunc(asked, func(q api.Quota) bool { return q.Device == api.AllDevices }) || len(has) < 2 {
		return
	}
	for _, own := range has {
		if own.Device != api.AllDevices {
			fmt.Fprintf(c.App.ErrWriter, "gpuslice: device %s keeps its own quota, %s: --device all changes that, too\n", own.Device, api.Share{Bytes: own.Bytes, Percent: own.Percent})
		}
	}
}

func changeRequest(c *cli.Context) (r api.ChangeRequest, err error) {
	if r.Drop, err = devicesNamed(c, "drop"); err != nil {
		return r, err
	}
	if !c.IsSet("vram") && !c.IsSet("ttl") && len(r.Drop) == 0 {
		return r, errors.New("nothing to change: give, for example, --vram 6G or --ttl 1h")
	}
	if c.IsSet("device") && !c.IsSet("vram") {
		return r, errors.New("--device needs --vram, the quota for that device")
	}
	if all := slices.Contains(c.StringSlice("device"), everyDevice); all && (len(c.StringSlice("device")) > 1 || len(r.Drop) > 0) {
		return r, errors.New("--device all means every device, so no other --device and no --drop can be given: leave them out")
	}
	if c.IsSet("vram") {
		if r.Quotas, err = quotaFlags(c); err != nil {
			return r, err
		}
	}
	if c.IsSet("ttl") {
		ttl, err := api.ParseTTL(c.String("ttl"))
		if err != nil {
			return r, fmt.Errorf("--ttl: %w", err)
		}
		r.TTL = &ttl
	}
	return r, nil
}

func renewCommand() *cli.Command {
	return &cli.Command{
		Name:      "renew",
		Usage:     "extend or shorten a slice's time to live",
		ArgsUsage: "ID DURATION",
		Description: `ID may be the beginning of a slice's or a container's id, or a name. DURATION is one such as 90s, 30m, 12h or 7d, or
never, or 0, for no end.
An expired slice is not renewed.

   gpuslice renew 3f2a91c0d5e8 1h
   gpuslice renew 3f2a91c0d5e8 never`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print the slice as JSON, as the control API has it"},
		},
		OnUsageError: usageError(exitUsage),
		Action: func(c *cli.Context) error {
			words, err := arguments(c, 2, "renew takes one ID and one DURATION, such as `gpuslice renew ID 1h`")
			if err != nil {
				return err
			}
			ttl, err := api.ParseTTL(words[1])
			if err != nil {
				return asMisuse(err)
			}
			return changeSlice(c, words[0], func(ctx context.Context, enforcer *client.Client, id string) (api.Slice, error) {
				return enforcer.Renew(ctx, id, api.RenewRequest{TTL: &ttl})
			})
		},
	}
}

func changeSlice(c *cli.Context, id string, change func(context.Context, *client.Client, string) (api.Slice, error)) error {
	slice, err := doByName(c, id, show.Names, change)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return show.JSON(c.App.Writer, slice)
	}
	return show.Slices(c.App.Writer, []api.Slice{slice}, false)
}

func quotaFlags(c *cli.Context) ([]api.Quota, error) {
	bytes, percent, err := api.ParseQuota(c.String("vram"))
	if err != nil {
		return nil, fmt.Errorf("--vram: %w", err)
	}
	devices, err := devicesNamed(c, "device")
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		devices = []string{api.AllDevices}
	}
	quotas := make([]api.Quota, 0, len(devices))
	for _, device := range devices {
		if device == everyDevice {
			device = api.AllDevices
		}
		quotas = append(quotas, api.Quota{Device: device, Bytes: bytes, Percent: percent})
	}
	return quotas, nil
}
