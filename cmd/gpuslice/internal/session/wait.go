// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

// Forever as Session.Wait waits without end.
const Forever time.Duration = -1

const (
	firstPause   = time.Second
	longestPause = 5 * time.Second
)

// await calls ask, and repeats it for the time of Wait while it is refused what may be granted later.
func (s *Session) await(ctx context.Context, ask func() error) error {
	err := ask()
	if s.Wait == 0 || !mayBeGranted(err) {
		return err
	}
	if s.Waiting != nil {
		s.Waiting(err)
	}
	left, pause := s.Wait, firstPause
	for mayBeGranted(err) && ctx.Err() == nil {
		if left == 0 {
			return fmt.Errorf("it was not granted within %s: %w", api.FormatTTL(s.Wait), err)
		}
		now := pause/2 + rand.N(pause/2) // so that waiting sessions ask at different times
		if left > 0 {
			now = min(now, left)
			left -= now
		}
		s.pause(ctx, now)
		pause = min(pause*3/2, longestPause)
		err = ask()
	}
	return err
}

func (s *Session) pause(ctx context.Context, d time.Duration) {
	if s.sleep != nil {
		s.sleep(ctx, d)
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// mayBeGranted reports whether a refused request was not carried out and may be granted later: others have the room, there are too many
// requests or sessions, or the enforcer is being restarted.
func mayBeGranted(err error) bool {
	var refused *api.Error
	if !errors.As(err, &refused) {
		return client.MayReturn(err)
	}
	switch refused.Code {
	case api.CodeBusy:
		return true
	case api.CodeQuotaExceeded:
		return refused.Requested <= refused.Limit && refused.Limit > 0
	}
	return false
}
