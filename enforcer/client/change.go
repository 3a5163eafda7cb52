// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Change gives a slice that runs other quotas, or other time: all that the request says, or nothing.
func (c *Client) Change(ctx context.Context, id string, r api.ChangeRequest) (api.Slice, error) {
	return c.change(ctx, "PATCH", id, "", r)
}

// Renew says how long a slice lives from now on. Of one whose time is over the error is api.ErrExpired.
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
