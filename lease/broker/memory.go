// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"math"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

func (e *engine) alloc(bytes uint64) (uint64, buffer, *leasepb.Failure) {
	if bytes == 0 {
		return 0, buffer{}, invalid("a buffer of 0 bytes: it has at least 1")
	}
	if f := e.full(); f != nil {
		return 0, buffer{}, f
	}
	b, f := e.take(bytes)
	if f != nil {
		return 0, b, f
	}
	handle := e.handle()
	e.buffers[handle] = b
	e.stats.buffers.Add(1)
	return handle, b, nil
}

func (e *engine) full() *leasepb.Failure {
	if len(e.buffers) < maxBuffers {
		return nil
	}
	return invalid("the session has %d buffers, which is the limit", maxBuffers)
}

// take allocates within the lease's limit. Requested bytes count; the driver's rounding is part of the overhead.
func (e *engine) take(bytes uint64) (buffer, *leasepb.Failure) {
	current := e.stats.allocated.Load()
	if bytes > e.vram-current {
		return buffer{}, noRoom(bytes, e.vram, current)
	}
	start, err := e.device.Alloc(bytes)
	switch {
	case errors.Is(err, cuda.OutOfMemory):
		f := noRoom(bytes, e.vram, current)
		f.Message += ", but no free piece is that large: the driver rounds sizes above 1 MiB up to 2 MiB, code takes a part, and reserved memory can be fragmented"
		return buffer{}, f
	case err != nil:
		return buffer{}, e.driverFailed(leasepb.Code_ALLOC_FAILED, err)
	}
	killpoint.Pass("broker.allocated")
	e.stats.allocated.Store(current + bytes)
	e.stats.peak.Store(max(e.stats.peak.Load(), current+bytes))
	return buffer{start: start, bytes: bytes}, nil
}

func (e *engine) give(b buffer) *leasepb.Failure {
	if err := e.device.Free(b.start); err != nil {
		e.notTaken("buffer", err)
		return e.driverFailed(leasepb.Code_INVALID_HANDLE, err)
	}
	e.stats.allocated.Add(-b.bytes)
	killpoint.Pass("broker.freed")
	return nil
}

func (e *engine) free(handle uint64) *leasepb.Failure {
	b, f := e.buffer(handle, 0, 0)
	if f != nil {
		return f
	}
	if b.module != 0 {
		return invalid("buffer %d is a variable of module %d: it is freed with the module", handle, b.module)
	}
	if f := e.give(b); f != nil {
		return f
	}
	delete(e.buffers, handle)
	e.stats.buffers.Add(^uint64(0))
	return nil
}

func (e *engine) noHandle(what string, handle uint64) *leasepb.Failure {
	if handle != 0 && handle>>handleBits < e.number {
		return advised(failed(leasepb.Code_INVALID_HANDLE, "%s %d was lost with the session's former broker: %s", what, handle, e.before), "allocate and load again")
	}
	return noHandle(what, handle)
}

func noHandle(what string, handle uint64) *leasepb.Failure {
	return failed(leasepb.Code_INVALID_HANDLE, "the session has no %s %d: it never existed, or was freed", what, handle)
}

func (b buffer) checkRange(offset, bytes uint64) *leasepb.Failure {
	if offset > b.bytes || bytes > b.bytes-offset {
		return failed(leasepb.Code_INVALID_HANDLE, "%d bytes at offset %d are not within the buffer's %d", bytes, offset, b.bytes)
	}
	return nil
}

// buffer returns the buffer with that handle. [offset, offset + bytes) must be within it.
func (e *engine) buffer(handle, offset, bytes uint64) (buffer, *leasepb.Failure) {
	b, ok := e.buffers[handle]
	if !ok {
		return b, e.noHandle("buffer", handle)
	}
	return b, b.checkRange(offset, bytes)
}

func (e *engine) memory(r *leasepb.Range) ([]byte, *leasepb.Failure) {
	memory, ok := e.sharedMemory[r.GetMemory()]
	if !ok {
		return nil, e.noHandle("shared memory", r.GetMemory())
	}
	if f := (buffer{bytes: uint64(len(memory))}).checkRange(r.GetOffset(), r.GetBytes()); f != nil {
		return nil, f
	}
	return memory[r.GetOffset() : r.GetOffset()+r.GetBytes()], nil
}

func tooMuch(bytes uint64) *leasepb.Failure {
	return advised(invalid("%d bytes in one message: it may have %d", bytes, maxData), "split it, or use shared memory")
}

func (e *engine) write(w *leasepb.MemWrite) *leasepb.Failure {
	data, shared := w.GetData(), w.GetShared() != nil
	var f *leasepb.Failure
	if shared {
		data, f = e.memory(w.GetShared())
	} else if len(data) > maxData {
		f = tooMuch(uint64(len(data)))
	}
	if f != nil {
		return f
	}
	b, f := e.buffer(w.GetHandle(), w.GetOffset(), uint64(len(data)))
	if f != nil || len(data) == 0 {
		return f
	}
	err := e.device.Write(b.start+cuda.Address(w.GetOffset()), data)
	killpoint.Pass("broker.written")
	if err == nil && shared {
		err = e.device.Sync() // the client may reuse the memory after the reply
	}
	if err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	e.stats.bytesWritten.Add(uint64(len(data)))
	return nil
}

func (e *engine) read(r *leasepb.MemRead, reply *leasepb.Reply) *leasepb.Failure {
	var to []byte
	bytes := r.GetBytes()
	if r.GetShared() != nil {
		var f *leasepb.Failure
		if to, f = e.memory(r.GetShared()); f != nil {
			return f
		}
		bytes = uint64(len(to))
	} else if bytes > maxData {
		return tooMuch(bytes)
	}
	b, f := e.buffer(r.GetHandle(), r.GetOffset(), bytes)
	if f != nil {
		return f
	}
	if to == nil {
		to = make([]byte, bytes)
		reply.Result = &leasepb.Reply_MemRead{MemRead: &leasepb.MemReadReply{Data: to}}
	}
	if len(to) == 0 {
		return nil
	}
	if err := e.device.Read(to, b.start+cuda.Address(r.GetOffset())); err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	killpoint.Pass("broker.read")
	e.stats.bytesRead.Add(uint64(len(to)))
	return nil
}

func (e *engine) set(s *leasepb.MemSet) *leasepb.Failure {
	if s.GetValue() > math.MaxUint8 {
		return invalid("a fill with %d: a byte is 0 to 255", s.GetValue())
	}
	b, f := e.buffer(s.GetHandle(), s.GetOffset(), s.GetBytes())
	if f != nil || s.GetBytes() == 0 {
		return f
	}
	if err := e.device.Set(b.start+cuda.Address(s.GetOffset()), byte(s.GetValue()), s.GetBytes()); err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	return nil
}

func (e *engine) copy(c *leasepb.MemCopy) *leasepb.Failure {
	to, f := e.buffer(c.GetTo(), c.GetToOffset(), c.GetBytes())
	if f != nil {
		return f
	}
	from, f := e.buffer(c.GetFrom(), c.GetFromOffset(), c.GetBytes())
	if f != nil || c.GetBytes() == 0 {
		return f
	}
	target, source := to.start+cuda.Address(c.GetToOffset()), from.start+cuda.Address(c.GetFromOffset())
	if target < source+cuda.Address(c.GetBytes()) && source < target+cuda.Address(c.GetBytes()) {
		return invalid("a copy of %d bytes onto itself: what it reads and what it writes overlap", c.GetBytes())
	}
	if err := e.device.Copy(target, source, c.GetBytes()); err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	return nil
}

func (e *engine) share(memory []byte) (uint64, error) {
	if err := e.device.Pin(memory); err != nil {
		if f := e.lost(err); f != nil {
			return 0, errors.New(f.GetMessage())
		}
		return 0, err
	}
	number := e.handle()
	e.sharedMemory[number] = memory
	return number, nil
}

func (e *engine) unshare(number uint64) {
	memory := e.sharedMemory[number]
	delete(e.sharedMemory, number)
	// All copies are complete: each was before its reply.
	if err := e.device.Unpin(memory); err != nil {
		e.notTaken("shared memory", err)
	}
}
