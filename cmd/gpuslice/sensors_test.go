// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type secretDevices struct{ lists }

func (secretDevices) Devices(context.Context) ([]api.Device, error) { return nil, api.ErrForbidden }

func TestTopReadsDevicesFromTheDriverWithoutWaiting(t *testing.T) {
	enforcer := client.New(listen(t, secretDevices{})).Watch()
	host := &sensors{slot: driver.NewSlot(), devices: []api.Device{{UUID: cardA}}, at: time.Now().Add(time.Hour)} // it has asked
	s := must.Get(snapshot(t.Context(), enforcer, host, nil))(t)
	expect.Equal(t, len(s.Devices) == 1 && s.Partial, true)
	host.slot <- struct{}{} // as a call that hangs
	s = must.Get(snapshot(t.Context(), enforcer, host, nil))(t)
	expect.Equal(t, len(s.Devices), 0)
}
