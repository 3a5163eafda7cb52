// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/api"
)

// Join adds a process to a session. ctx has to carry the session's token (api.WithToken).
func (c *Client) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	if err := api.CheckID(id); err != nil { // needs no escaping then
		return api.RegisterReply{}, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return api.RegisterReply{}, fmt.Errorf("encode the request: %w", err)
	}
	return do[api.RegisterReply](ctx, c, "POST", "/v1/slices/"+id+"/join", body, maxOne)
}
