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

// AwaitRoom calls ask, and repeats it for up to a minute while the enforcer answers that it evicts idle elastic slices to make
// room. Such an answer means that the request was not carried out.
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
