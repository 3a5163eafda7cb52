// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	maxPart       = 1 << 10 // maximum of requests executed before another client's turn
	maxReplyBytes = 1 << 20 // in a message of several replies; gRPC clients accept 4 MiB by default
	// clientGoroutines is the number of goroutines per client: one decodes a message while the other executes the previous
	// one. They overlap only for messages of at least longMessage requests: for shorter ones waking the other takes longer.
	clientGoroutines = 2
	longMessage      = 16
)

// client is one connection of Work. Each goroutine takes its next lock before it releases the previous one: requests are
// executed and answered in order. A client that reads no replies is not read from.
type client struct {
	broker *Broker
	stream leasepb.Session_WorkServer

	receiving, working, sending sync.Mutex
	history                     history // guarded by working
}

// serve returns nil after the client has closed its side and all requests are answered.
func (c *client) serve() error {
	receives := false
	defer func() {
		if receives {
			c.receiving.Unlock()
		}
	}()
	for {
		if !receives {
			c.receiving.Lock()
			receives = true
		}
		message, err := c.stream.Recv()
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return err
		}
		c.working.Lock()
		if len(message.GetRequests()) >= longMessage {
			c.receiving.Unlock()
			receives = false
		}
		replies, ended, err := c.work(message)
		c.sending.Lock()
		c.working.Unlock()
		if err == nil {
			err = c.send(replies)
		}
		c.sending.Unlock()
		if ended {
			c.broker.stop(ExitContext, c.broker.engine.why)
		}
		if err != nil || last {
			return err
		}
	}
}

// work executes a message. It returns the replies not yet sent, and whether the context is lost.
func (c *client) work(message *leasepb.Requests) (replies []*leasepb.Reply, gone bool, err error) {
	for requests := message.GetRequests(); len(requests) > 0; {
		c.sending.Lock()
		err := c.send(replies)
		c.sending.Unlock()
		if err != nil {
			return nil, gone, err
		}
		if replies, requests, gone, err = c.broker.carryOut(&c.history, message, requests); err != nil {
			return nil, gone, err
		}
	}
	return replies, gone, nil
}

func (c *client) send(replies []*leasepb.Reply) error {
	if len(replies) == 0 {
		return nil
	}
	return c.stream.Send(&leasepb.Replies{Replies: replies})
}

// carryOut executes the first of the requests, and returns the rest. It stops before one that may wait for the device, so
// that earlier replies are sent first.
func (b *Broker) carryOut(h *history, message *leasepb.Requests, requests []*leasepb.Request) (replies []*leasepb.Reply, rest []*leasepb.Request, gone bool, err error) {
	b.working.Lock()
	defer b.working.Unlock()
	if b.hasEnded() {
		return nil, nil, false, b.endedStatus()
	}
	bytes, reply := 0, &leasepb.Reply{}
	for i, r := range requests {
		if len(replies) > 0 && (waits(r) || bytes >= maxReplyBytes) || i == maxPart {
			return replies, requests[i:], b.engine.contextFailure != nil, nil
		}
		b.engine.do(h, r, reply)
		if message.GetQuiet() && isLaunch(r) && reply.Failure == nil && (!message.GetAnswerLast() || i < len(requests)-1) {
			continue
		}
		bytes += proto.Size(reply)
		replies = append(replies, reply)
		reply = &leasepb.Reply{}
	}
	return replies, nil, b.engine.contextFailure != nil, nil
}

func isLaunch(r *leasepb.Request) bool {
	_, ok := r.GetOperation().(*leasepb.Request_Launch)
	return ok
}

// waits reports whether a request may take long, or have a large reply.
func waits(r *leasepb.Request) bool {
	switch r.GetOperation().(type) {
	case *leasepb.Request_Launch, *leasepb.Request_MemAlloc, *leasepb.Request_MemSet, *leasepb.Request_MemCopy:
		return false
	}
	return true
}
