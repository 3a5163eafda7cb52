// SPDX-License-Identifier: Apache-2.0

// Package client sends requests to the enforcer over its control socket.
//
// The hook imports this package, and an OCI runtime starts the hook twice per container. Its imports are package api and the
// standard library without net/http, which would add 3.6 MB to a program and half a millisecond to its start. It implements the
// subset of HTTP that it needs.
//
// The package must never retry a request that may have been carried out, and never wait without a timeout, except for events.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// DefaultTimeout limits a request if its context has no deadline. An engine waits for the hook, so a missing answer has to become
// an error.
const DefaultTimeout = 10 * time.Second

// Client sends requests to the enforcer on one socket. It holds no connection, and is safe for concurrent use.
//
// Errors are an *api.Error if the enforcer rejected the request (compare by errors.Is), and wrap api.ErrUnreachable if it did not
// answer. After a timeout the request may have been carried out: a repeated Release is harmless, a repeated Register fails with
// api.ErrExists.
type Client struct {
	socket string
}

// New returns a Client for socket, or for api.DefaultSocket if it is "". It does no I/O.
func New(socket string) *Client {
	if socket == "" {
		socket = api.DefaultSocket
	}
	return &Client{socket: socket}
}

// Info returns the enforcer's versions and settings.
func (c *Client) Info(ctx context.Context) (api.Info, error) {
	return do[api.Info](ctx, c, "GET", "/v1/info", nil, maxOne)
}

// Register registers a slice.
func (c *Client) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return api.RegisterReply{}, fmt.Errorf("encode the request: %w", err)
	}
	reply, err := do[api.RegisterReply](ctx, c, "POST", "/v1/slices", body, maxOne)
	// During an upgrade an enforcer that rejects names may answer. It has done nothing then.
	if r.Names != (api.Names{}) && errors.Is(err, api.ErrBadRequest) && strings.Contains(err.Error(), "unknown field") {
		r.Names = api.Names{}
		return c.Register(ctx, r)
	}
	return reply, err
}

// Release releases the slice of this generation; 0 matches any. With force it ignores live processes.
func (c *Client) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := api.CheckID(id); err != nil { // needs no escaping then
		return api.Slice{}, err
	}
	path := "/v1/slices/" + id + "?generation=" + strconv.FormatUint(generation, 10) + "&force=" + strconv.FormatBool(force)
	return do[api.Slice](ctx, c, "DELETE", path, nil, maxOne)
}

// Slices returns the active slices, without their processes.
func (c *Client) Slices(ctx context.Context) ([]api.Slice, error) {
	return do[[]api.Slice](ctx, c, "GET", "/v1/slices", nil, maxList)
}

// SlicesWithCommands returns the same with Slice.Command, or without it if the enforcer has an older version.
func (c *Client) SlicesWithCommands(ctx context.Context) ([]api.Slice, error) {
	all, err := do[[]api.Slice](ctx, c, "GET", "/v1/slices?commands=true", nil, maxList)
	if errors.Is(err, api.ErrBadRequest) {
		return c.Slices(ctx)
	}
	return all, err
}

// Released returns the released slices that still have live processes, with these processes.
func (c *Client) Released(ctx context.Context) ([]api.Slice, error) {
	return do[[]api.Slice](ctx, c, "GET", "/v1/slices?released=true", nil, maxList)
}

// Slice returns one slice, with its processes.
func (c *Client) Slice(ctx context.Context, id string) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	return do[api.Slice](ctx, c, "GET", "/v1/slices/"+id, nil, maxList)
}

// Health reports whether the enforcer makes progress. A hanging enforcer can still answer.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	return do[api.Health](ctx, c, "GET", "/v1/health", nil, maxOne)
}

// History returns the memory needs of active and recently ended slices.
func (c *Client) History(ctx context.Context) ([]api.Run, error) {
	return do[[]api.Run](ctx, c, "GET", "/v1/history", nil, maxList)
}

// Limits returns what a user may have; nil is the calling user.
func (c *Client) Limits(ctx context.Context, of *api.User) (api.UserLimits, error) {
	path := "/v1/limits"
	if of != nil {
		var groups []string
		for _, gid := range of.Groups {
			groups = append(groups, strconv.FormatUint(uint64(gid), 10))
		}
		path += "?uid=" + strconv.FormatUint(uint64(of.UID), 10) + "&groups=" + strings.Join(groups, ",")
	}
	return do[api.UserLimits](ctx, c, "GET", path, nil, maxOne)
}

// Devices returns the host's devices.
func (c *Client) Devices(ctx context.Context) ([]api.Device, error) {
	return do[[]api.Device](ctx, c, "GET", "/v1/devices", nil, maxList)
}
