// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// What one client may have in the broker: requests that wait, and replies that it has not read. One that reads nothing is not read from.
const (
	maxPending      = 1 << 13
	maxPart         = 1 << 10 // requests that are carried out without another client's between them
	maxPendingBytes = 64 << 20
	maxReplies      = 1 << 10 // in a message
	maxReplyBytes   = 1 << 20 // of several: gRPC's clients take 4 MiB unless they say otherwise
)

// client is one connection of Work.
type client struct {
	history history // the worker's

	mutex   sync.Mutex
	changed sync.Cond
	replies []*leasepb.Reply
	parts   []part // that were received, and whose replies are not all sent
	pending int    // requests of those
	bytes   uint64
	ended   bool
}

// part is some of the requests of a message.
type part struct {
	requests int
	bytes    uint64 // that they, and their replies, can make the broker hold
}

func newClient() *client {
	c := &client{}
	c.changed.L = &c.mutex
	return c
}

// weight is what a request can make the broker hold.
func weight(r *leasepb.Request) uint64 {
	bytes := uint64(proto.Size(r))
	switch o := r.GetOperation().(type) {
	case *leasepb.Request_MemRead:
		bytes += min(o.MemRead.GetBytes(), maxData)
	case *leasepb.Request_Submit:
		bytes += maxData
	}
	return bytes
}

// cut takes the first part of the requests. It has at least one, which may be larger than all room.
func cut(requests []*leasepb.Request) (first, rest []*leasepb.Request, p part) {
	for _, r := range requests {
		bytes := weight(r)
		if p.requests == maxPart || p.requests > 0 && p.bytes+bytes > maxPendingBytes {
			break
		}
		p.requests++
		p.bytes += bytes
	}
	return requests[:p.requests], requests[p.requests:], p
}

// admit waits until there is room; false says that the connection has ended. What is larger than all room comes alone.
func (c *client) admit(p part) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for !c.ended && c.pending > 0 && (c.pending+p.requests > maxPending || c.bytes+p.bytes > maxPendingBytes) {
		c.changed.Wait()
	}
	c.parts = append(c.parts, p)
	c.pending += p.requests
	c.bytes += p.bytes
	return !c.ended
}

func (c *client) push(replies []*leasepb.Reply) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.ended {
		c.replies = append(c.replies, replies...)
	}
	c.changed.Broadcast()
}

// next waits for replies: as many as fit into a message. There is none when the connection has ended and all is sent.
func (c *client) next() []*leasepb.Reply {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for !c.ended && len(c.replies) == 0 {
		c.changed.Wait()
	}
	n, bytes := 0, 0
	for n < len(c.replies) && n < maxReplies {
		bytes += proto.Size(c.replies[n])
		if n > 0 && bytes > maxReplyBytes {
			break
		}
		n++
	}
	batch := c.replies[:n:n]
	if c.replies = c.replies[n:]; len(c.replies) == 0 {
		c.replies = nil
	}
	return batch // nil if there are none
}

// sent makes room: so many replies are gone.
func (c *client) sent(replies int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for replies > 0 && len(c.parts) > 0 {
		first := &c.parts[0]
		n := min(replies, first.requests)
		first.requests -= n
		c.pending -= n
		replies -= n
		if first.requests == 0 {
			c.bytes -= first.bytes
			c.parts = c.parts[1:]
		}
	}
	c.changed.Broadcast()
}

func (c *client) end() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ended = true
	c.changed.Broadcast()
}

// drain waits until everything is answered.
func (c *client) drain() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for !c.ended && c.pending > 0 {
		c.changed.Wait()
	}
}
