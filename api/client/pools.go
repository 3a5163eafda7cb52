// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/api"
)

// Pools lists the pools, by name.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	return do[[]api.Pool](ctx, c, "GET", "/v1/pools", nil, maxList)
}

// Pool asks for one pool.
func (c *Client) Pool(ctx context.Context, name string) (api.Pool, error) {
	if err := api.CheckPoolName(name); err != nil { // so that it needs no escaping
		return api.Pool{}, err
	}
	return do[api.Pool](ctx, c, "GET", "/v1/pools/"+name, nil, maxList)
}

// CreatePool makes a pool; or finds it, if it was created by the same request. Of another one of that name the error is api.ErrExists.
func (c *Client) CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return c.askPool(ctx, "PUT", name, &r)
}

// SetPool changes quotas of a pool: each goes in place of that on the same device.
func (c *Client) SetPool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error) {
	return c.askPool(ctx, "PATCH", name, &r)
}

// DeletePool ends a pool. Of one that has members the error is api.ErrRunning.
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
