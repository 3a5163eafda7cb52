// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestEventsComeOneByOneAndInOrder(t *testing.T) {
	log := event.NewLog(64)
	for range 50 {
		log.Append("c1", api.Event{Kind: api.EventRefused, Slice: "c1", Requested: 1 << 40})
	}
	c := enforcer(t, &service{log: log})
	want := uint64(10)
	err := c.Events(context.Background(), "", 10, false, func(e api.Event) error {
		if want++; e.Seq != want || e.Slice != "c1" || e.Requested != 1<<40 {
			t.Errorf("%+v, want number %d", e, want)
		}
		return nil
	})
	if err != nil || want != 50 {
		t.Errorf("it ended after %d: %v", want, err)
	}
	enough := errors.New("enough")
	expect.ErrorIs(t, c.Events(context.Background(), "", 0, true, func(api.Event) error { return enough }), enough)
}

func TestFollowingEndsWithTheContextOrTheEnforcer(t *testing.T) {
	log := event.NewLog(64)
	log.Append("c1", api.Event{})
	c := enforcer(t, &service{log: log})
	ctx, cancel := context.WithCancel(context.Background())
	err := c.Events(ctx, "", 0, true, func(e api.Event) error {
		if e.Seq == 2 {
			cancel()
		} else {
			log.Append("c1", api.Event{})
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, api.ErrUnreachable) {
		t.Errorf("%v", err)
	}
	err = c.Events(context.Background(), "", 1, true, func(api.Event) error { log.Close(); return nil })
	expect.ErrorIs(t, err, api.ErrUnreachable)
}

func TestEventErrorsAreDistinguishable(t *testing.T) {
	failEach := func(api.Event) error { return errors.New("there was one") }
	refused := enforcer(t, &service{log: event.NewLog(1), err: api.Errorf(api.CodeBusy, "too many")})
	expect.ErrorSays(t, refused.Events(context.Background(), "", 0, true, failEach), &api.Error{Code: api.CodeBusy}, "too many")
	expect.ErrorIs(t, New(socketPath(t)).Events(context.Background(), "", 0, false, failEach), api.ErrUnreachable)
	for name, answer := range map[string]string{
		"nothing":           "",
		"not HTTP":          "SSH-2.0-OpenSSH\r\n\r\n",
		"no end of headers": "HTTP/1.0 200 OK\r\n",
		"a strange status":  "HTTP/1.0 x OK\r\n\r\n{}",
		"not JSON":          "HTTP/1.0 200 OK\r\n\r\nhi\n",
		"an event cut off":  "HTTP/1.0 200 OK\r\n\r\n{\"seq\":1,",
		"a line too long":   "HTTP/1.0 200 OK\r\n\r\n" + strings.Repeat("x", maxLine+1),
		"a foreign error":   "HTTP/1.0 502 Bad Gateway\r\n\r\nhi",
	} {
		c := answering(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
		})
		if err := c.Events(context.Background(), "", 0, false, failEach); err == nil || err.Error() == "there was one" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
