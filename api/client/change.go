// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Change changes the quotas or the time to live of an active slice. It applies all of r or nothing.
func (c *Client) Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	return c.change(ctx, "PATCH", id, "", r)
}

// Renew extends or shortens the time to live of a slice. The error is api.ErrExpired if the slice has expired.
func (c *Client) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	return c.change(ctx, "POST", id, "/renew", r)
}

func (c *Client) change(ctx context.Context, method, id, verb string, request any) (api.Slice, error) {
	if err := api.CheckID(id); err != nil { // needs no escaping then
		return api.Slice{}, err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return api.Slice{}, fmt.Errorf("encode the request: %w", err)
	}
	return do[api.Slice](ctx, c, method, "/v1/slices/"+id+verb, body, maxOne)
}

// MoveTimeout is the time that Suspend and Resume wait for the answer. Tens of gigabytes take minutes, and moves run one after
// another.
const MoveTimeout = time.Hour

// Suspend moves all device memory of the slice's processes to host memory, or none and returns an error. It returns when the move
// is complete.
func (c *Client) Suspend(ctx context.Context, id string) (api.Slice, error) {
	return c.move(ctx, id, "/suspend")
}

// Resume moves the memory of a suspended slice back to its devices. If there is too little room, the error is
// api.ErrQuotaExceeded, and the slice stays suspended.
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
