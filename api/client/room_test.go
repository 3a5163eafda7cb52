// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestWhoAsksWaitsWhileRoomIsMade(t *testing.T) {
	room := api.Errorf(api.CodeBusy, "idle elastic slices are being evicted")
	room.Device = "GPU-1"
	for name, c := range map[string]struct {
		err   error
		asked int
	}{
		"room is made":       {room, 3},
		"as many ask as may": {api.Errorf(api.CodeBusy, "try again later"), 1},
		"there is none":      {api.Errorf(api.CodeQuotaExceeded, "no"), 1},
		"nobody answers":     {errors.New("no"), 1},
	} {
		asked := 0
		err := AwaitRoom(t.Context(), func() error {
			if asked++; asked <= 2 {
				return c.err
			}
			return nil
		})
		if asked != c.asked || (err == nil) != (c.asked > 1) {
			t.Errorf("%s: asked %d times, %v", name, asked, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	expect.ErrorIs(t, AwaitRoom(ended, func() error { return room }), room)
}
