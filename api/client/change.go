// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Change gives a slice that runs other quotas, or other time: all that the request says, or nothing.
func (c *Client) Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	return c.change(ctx, "PATCH", id, "", r)
}

// Renew extends or shortens the time to live of a slice. Of one whose time is over the error is api.ErrExpired.
func (c *Client) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	return c.change(ctx, "POST", id, "/renew", r)
}

func (c *Client) change(ctx context.Context, method, id, verb string, request any) (api.Slice, error) {
	if err := api.CheckID(id); err != nil { // so that it needs no escaping
		return api.Slice{}, err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return api.Slice{}, fmt.Errorf("encode the request: %w", err)
	}
	return do[api.Slice](ctx, c, method, "/v1/slices/"+id+verb, body, maxOne)
}

// MoveTimeout is for how long Suspend and Resume wait for the answer: tens of gigabytes take minutes, and one waits for the other.
const MoveTimeout = time.Hour

// Suspend moves what the slice's processes hold on their devices to host memory: of all of them, or of none and says why. It returns when that is
// done.
func (c *Client) Suspend(ctx context.Context, id string) (api.Slice, error) {
	return c.move(ctx, id, "/suspend")
}

// Resume brings it back. If there is no room the error is api.ErrQuotaExceeded, and the slice stays as it is.
func (c *Client) Resume(ctx context.Context, id string) (api.Slice, error) {
	return c.move(ctx, id, "/resume")
}

func (c *Client) move(ctx context.Context, id, verb string) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, MoveTimeout)
	defer cancel()
	return do[api.Slice](ctx, c, "POST", "/v1/slices/"+id+verb, nil, maxOne)
}
