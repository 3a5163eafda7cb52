// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

const (
	roomPatience = time.Minute
	roomPause    = 200 * time.Millisecond
)

// AwaitRoom asks by ask, and again as long as the answer is that idle elastic slices are being moved aside for it: a minute at most. Nothing was carried
// out then.
func AwaitRoom(ctx context.Context, ask func() error) error {
	for begun := time.Now(); ; time.Sleep(roomPause) {
		err := ask()
		var busy *api.Error
		makesRoom := errors.As(err, &busy) && busy.Code == api.CodeBusy && busy.Device != ""
		if !makesRoom || ctx.Err() != nil || time.Since(begun) > roomPatience {
			return err
		}
	}
}
