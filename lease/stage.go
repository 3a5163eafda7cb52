// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Long transfers of a session on this host go through its own shared memory, in pieces: some are copied here while others are
// copied on the device's side.
const (
	stagedFrom  = 1 << 20 // minimum size of a transfer
	stagePiece  = 2 << 20
	stagePieces = 4
)

// staging is that shared memory. The first long transfer allocates it, and Share frees it, as it may need the room.
type staging struct {
	using  sync.RWMutex // read-locked by transfers, locked to make or drop the memory
	shared *Shared      // nil if there is none
	free   chan uint64  // offsets of pieces
	no     bool         // unavailable: the lease has no room, or the session is closed
}

// use makes the memory if there is none, and keeps it until done is called. It is false if there is no room for it, or if it is being made or dropped: messages
// are then faster than waiting. After false, done must not be called.
func (st *staging) use(ctx context.Context, s *Session) bool {
	if s.directory == "" {
		return false
	}
	if st.using.TryLock() {
		if st.shared == nil && !st.no {
			st.make(ctx, s)
		}
		st.using.Unlock()
	}
	if !st.using.TryRLock() {
		return false
	}
	if st.shared == nil {
		st.using.RUnlock()
		return false
	}
	return true
}

func (st *staging) done() { st.using.RUnlock() }

func (st *staging) make(ctx context.Context, s *Session) {
	shared, err := s.share(ctx, stagePieces*stagePiece)
	if err != nil {
		st.no = ctx.Err() == nil
		return
	}
	st.shared, st.free = shared, make(chan uint64, stagePieces)
	for i := range uint64(stagePieces) {
		st.free <- i * stagePiece
	}
}

// drop frees the memory, unless a transfer uses it. If it does, the lease has the room again on return.
func (st *staging) drop(ctx context.Context) {
	if !st.using.TryLock() {
		return // in use
	}
	defer st.using.Unlock()
	if st.shared != nil {
		st.shared.release(ctx)
	}
	st.shared, st.no = nil, false
}

// close frees the memory at the session's end: transfers have failed, or are about to.
func (st *staging) close() {
	st.using.Lock()
	defer st.using.Unlock()
	if st.shared != nil {
		_ = st.shared.Close() // the broker frees its part
	}
	st.shared, st.no = nil, true
}

// release closes the memory, and waits until the broker has freed its part.
func (s *Shared) release(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = s.connection.Close() })()
	if socket, ok := s.connection.(*net.UnixConn); ok && socket.CloseWrite() == nil {
		_, _ = socket.Read(make([]byte, 1))
	}
	_ = s.Close()
}

// piece is a request in flight, and its part of the transfer.
type piece struct {
	at       uint64 // offset in shared memory
	from, to int
	reply    chan *leasepb.Reply
}

// transfer transfers size bytes, and returns how many are done. It calls before with the memory of a free piece, and after
// once the piece's request is answered.
func (st *staging) transfer(ctx context.Context, s *Session, size int, request func(from int, memory *leasepb.Range) *leasepb.Request,
	before, after func(from, to int, memory []byte),
) (done int, err error) {
	var under []piece
	free := st.free
	defer func() {
		for _, p := range under { // the broker may still use it
			go func() { <-p.reply; free <- p.at }()
		}
	}()
	for from := 0; from < size || len(under) > 0; {
		if from < size {
			at, ok := st.take(ctx, len(under) == 0)
			if !ok && len(under) == 0 {
				return done, context.Cause(ctx)
			}
			if ok {
				p := piece{at: at, from: from, to: min(from+stagePiece, size)}
				bytes := uint64(p.to - p.from)
				before(p.from, p.to, st.shared.memory[at:at+bytes])
				killpoint.Pass("client.staged")
				if p.reply, err = s.enqueue(ctx, request(from, st.shared.part(at, bytes)), true); err != nil {
					free <- at
					return done, err
				}
				under, from = append(under, p), p.to
				continue
			}
		}
		p := under[0]
		select {
		case reply, ok := <-p.reply:
			under = under[1:]
			if err = s.result(reply, ok); err == nil {
				after(p.from, p.to, st.shared.memory[p.at:p.at+uint64(p.to-p.from)])
				done = p.to
			}
			free <- p.at
			if err != nil {
				return done, err
			}
		case <-ctx.Done():
			return done, context.Cause(ctx)
		}
	}
	return done, nil
}

// take takes a free piece. A caller that holds one must not wait: others may wait for its piece.
func (st *staging) take(ctx context.Context, wait bool) (uint64, bool) {
	if !wait {
		select {
		case at := <-st.free:
			return at, true
		default:
			return 0, false
		}
	}
	select {
	case at := <-st.free:
		return at, true
	case <-ctx.Done():
		return 0, false
	}
}

// writeStaged and readStaged transfer what they can through shared memory, and return the bytes done. The caller sends the rest in messages: all of it if
// there is no such memory, or what is left if the broker has dropped it.
func (b *Buffer) writeStaged(ctx context.Context, offset uint64, data []byte) (int, error) {
	return b.staged(ctx, len(data), func(from int, memory *leasepb.Range) *leasepb.Request {
		return &leasepb.Request{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
			Handle: b.handle, Offset: offset + uint64(from), Source: &leasepb.MemWrite_Shared{Shared: memory},
		}}}
	}, func(from, to int, memory []byte) { copy(memory, data[from:to]) }, func(int, int, []byte) {})
}

func (b *Buffer) readStaged(ctx context.Context, offset uint64, data []byte) (int, error) {
	return b.staged(ctx, len(data), func(from int, memory *leasepb.Range) *leasepb.Request {
		return &leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{
			Handle: b.handle, Offset: offset + uint64(from), Destination: &leasepb.MemRead_Shared{Shared: memory},
		}}}
	}, func(int, int, []byte) {}, func(from, to int, memory []byte) { copy(data[from:to], memory) })
}

func (b *Buffer) staged(ctx context.Context, size int, request func(int, *leasepb.Range) *leasepb.Request, before, after func(int, int, []byte)) (int, error) {
	st := &b.session.staging
	if size < stagedFrom || !st.use(ctx, b.session) {
		return 0, nil
	}
	done, err := st.transfer(ctx, b.session, size, request, before, after)
	st.done()
	var refused *Error
	if errors.As(err, &refused) && refused.Code == InvalidHandle { // the broker does not know the buffer or the memory; messages report it if it is the buffer
		st.drop(ctx)
		err = nil
	}
	return done, err
}

// result returns a reply's failure, or the session's error if there is no reply.
func (s *Session) result(reply *leasepb.Reply, ok bool) error {
	if !ok {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		return s.err
	}
	if f := reply.GetFailure(); f != nil {
		return failure(f)
	}
	return nil
}
