// SPDX-License-Identifier: Apache-2.0

// Package client asks the enforcer over its control socket.
//
// It is imported by the hook, which an OCI runtime starts twice per container: it depends on
// the standard library and package api only, and not on net/http. (A stripped program that does nothing but one
// request has 6.0 MB with net/http and 2.4 MB without, and with it starts half a millisecond later.) So it
// speaks the little HTTP that one request needs: HTTP/1.0, one connection each, the answer ends with the connection.
//
// It must never retry a request that may have been carried out, nor wait without an end, but for events that are
// followed.
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

// DefaultTimeout is how long a request may take if its context has no deadline. An engine
// waits for the hook, so an answer that never comes must become an error.
const DefaultTimeout = 10 * time.Second

// Client asks the enforcer that listens on a socket. It holds no connection, and may be used by several goroutines.
//
// Its errors are an *api.Error, to be told apart with errors.Is and the sentinels of package api, if the enforcer
// refused; they wrap api.ErrUnreachable if nobody answers. After a timeout it is not known whether the request was
// carried out: to release again is harmless, to register again is refused with api.ErrExists.
type Client struct {
	socket string
}

// New returns a Client for a socket; "" is api.DefaultSocket. It does no I/O.
func New(socket string) *Client {
	if socket == "" {
		socket = api.DefaultSocket
	}
	return &Client{socket: socket}
}

// Info asks who answers.
func (c *Client) Info(ctx context.Context) (api.Info, error) {
	return do[api.Info](ctx, c, "GET", "/v1/info", nil, maxOne)
}

// Register asks for a slice.
func (c *Client) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return api.RegisterReply{}, fmt.Errorf("encode the request: %w", err)
	}
	reply, err := do[api.RegisterReply](ctx, c, "POST", "/v1/slices", body, maxOne)
	// While gpuslice is upgraded an enforcer may answer that knows no names yet, and has carried out nothing then.
	if r.Names != (api.Names{}) && errors.Is(err, api.ErrBadRequest) && strings.Contains(err.Error(), "unknown field") {
		r.Names = api.Names{}
		return c.Register(ctx, r)
	}
	return reply, err
}

// Release gives a slice back: that of that generation, or whatever generation it has if that is 0. With force, even
// if its processes are alive.
func (c *Client) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	if err := api.CheckID(id); err != nil { // so that it needs no escaping
		return api.Slice{}, err
	}
	path := "/v1/slices/" + id + "?generation=" + strconv.FormatUint(generation, 10) + "&force=" + strconv.FormatBool(force)
	return do[api.Slice](ctx, c, "DELETE", path, nil, maxOne)
}

// Slices lists the active slices, without their processes.
func (c *Client) Slices(ctx context.Context) ([]api.Slice, error) {
	return do[[]api.Slice](ctx, c, "GET", "/v1/slices", nil, maxList)
}

// Released lists the slices that were released while processes were alive, with these.
func (c *Client) Released(ctx context.Context) ([]api.Slice, error) {
	return do[[]api.Slice](ctx, c, "GET", "/v1/slices?released=true", nil, maxList)
}

// Slice asks for one slice, with its processes.
func (c *Client) Slice(ctx context.Context, id string) (api.Slice, error) {
	if err := api.CheckID(id); err != nil {
		return api.Slice{}, err
	}
	return do[api.Slice](ctx, c, "GET", "/v1/slices/"+id, nil, maxList)
}

// Health says whether the enforcer makes progress. (That it answers at all is not the whole of it.)
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	return do[api.Health](ctx, c, "GET", "/v1/health", nil, maxOne)
}

// History lists what slices needed that run, and of late ran.
func (c *Client) History(ctx context.Context) ([]api.Run, error) {
	return do[[]api.Run](ctx, c, "GET", "/v1/history", nil, maxList)
}

// Devices lists the host's devices.
func (c *Client) Devices(ctx context.Context) ([]api.Device, error) {
	return do[[]api.Device](ctx, c, "GET", "/v1/devices", nil, maxList)
}
