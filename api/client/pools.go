// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/api"
)

// Pools returns the pools, sorted by name.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	return do[[]api.Pool](ctx, c, "GET", "/v1/pools", nil, maxList)
}

// Pool returns one pool.
func (c *Client) Pool(ctx context.Context, name string) (api.Pool, error) {
	if err := api.CheckPoolName(name); err != nil { // needs no escaping then
		return api.Pool{}, err
	}
	return do[api.Pool](ctx, c, "GET", "/v1/pools/"+name, nil, maxList)
}

// CreatePool creates a pool, or returns the existing one if it was created by the same request. If another pool has the name, the
// error is api.ErrExists.
func (c *Client) CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return c.askPool(ctx, "PUT", name, &r)
}

// SetPool replaces a pool's quotas on the devices that r names.
func (c *Client) SetPool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return c.askPool(ctx, "PATCH", name, &r)
}

// DeletePool deletes a pool. If the pool has members, the error is api.ErrRunning.
func (c *Client) DeletePool(ctx context.Context, name string) (api.Pool, error) {
	return c.askPool(ctx, "DELETE", name, nil)
}

func (c *Client) askPool(ctx context.Context, method, name string, r *api.PoolRequest) (api.Pool, error) {
	if err := api.CheckPoolName(name); err != nil {
		return api.Pool{}, err
	}
	var body []byte
	if r != nil {
		var err error
		if body, err = json.Marshal(r); err != nil {
			return api.Pool{}, fmt.Errorf("encode the request: %w", err)
		}
	}
	return do[api.Pool](ctx, c, method, "/v1/pools/"+name, body, maxList)
}
