// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// maxLine is the maximum length of an event, or of a header line, in bytes.
const maxLine = 64 << 10

// Events calls each for every event of an enforcer instance with a number above since, oldest first. An empty instance means the running
// enforcer. If events were lost, each gets one api.EventMissed. With follow, Events waits for further events without a timeout. It returns
// each's error unchanged, context.Cause(ctx) once ctx ends, an *api.Error if the enforcer refuses the request, and an error that wraps
// api.ErrUnreachable if the enforcer does not begin to answer within DefaultTimeout, or exits.
func (c *Client) Events(ctx context.Context, instance string, since uint64, follow bool, each func(api.Event) error) error {
	path := "/v1/events?since=" + strconv.FormatUint(since, 10) + "&follow=" + strconv.FormatBool(follow)
	if instance != "" {
		path += "&instance=" + url.QueryEscape(instance)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, hangUp, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	limit := time.AfterFunc(DefaultTimeout, func() { cancel(context.DeadlineExceeded) })
	defer limit.Stop()
	_, writeErr := conn.Write(request(ctx, "GET", path, "1.0", nil))

	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	status, err := readHeader(lines)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return c.unreachable(errors.Join(writeErr, err))
	}
	if status != 200 {
		var body bytes.Buffer
		for lines.Scan() {
			body.Write(lines.Bytes())
		}
		return refusal(status, body.Bytes())
	}
	limit.Stop()
	for lines.Scan() {
		var e api.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("decode an event from the enforcer: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case lines.Err() != nil:
		return fmt.Errorf("read the enforcer's events: %w", lines.Err())
	case follow:
		return fmt.Errorf("the event stream ended: the enforcer exited, or this client read too slowly: %w", api.ErrUnreachable)
	}
	return nil
}

// readHeader reads the status line and the headers of an HTTP/1 response, and returns the status code.
func readHeader(lines *bufio.Scanner) (status int, err error) {
	if !lines.Scan() {
		return 0, errors.Join(lines.Err(), io.ErrUnexpectedEOF)
	}
	parts := strings.SplitN(lines.Text(), " ", 3)
	if len(parts) < 2 || !strings.HasPrefix(parts[0], "HTTP/1.") {
		return 0, fmt.Errorf("%w: %.80q", errNotHTTP, lines.Text())
	}
	if status, err = strconv.Atoi(parts[1]); err != nil || status < 200 || status > 599 {
		return 0, fmt.Errorf("%w: %.80q", errNotHTTP, lines.Text())
	}
	for lines.Scan() {
		if lines.Text() == "" {
			return status, nil
		}
	}
	return 0, errors.Join(lines.Err(), io.ErrUnexpectedEOF)
}
