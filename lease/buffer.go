// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"unsafe"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Buffer is device memory. It is an [io.ReaderAt] and an [io.WriterAt].
type Buffer struct {
	session *Session
	handle  uint64
	address uint64
	size    uint64
}

var (
	_ io.ReaderAt = (*Buffer)(nil)
	_ io.WriterAt = (*Buffer)(nil)
)

// noBuffer stands for a nil buffer, such as that of a failed Alloc.
var noBuffer = &Buffer{session: &Session{err: &Error{Code: InvalidHandle, Message: "the buffer is nil", Advice: "check the error of the call that should have returned it"}}}

// orNone returns the buffer; noBuffer for nil, so that calls fail.
func (b *Buffer) orNone() *Buffer {
	if b == nil || b.session == nil {
		return noBuffer
	}
	return b
}

// Bytes returns the memory of numbers, in the order of a device's, for [Buffer.Write], [Buffer.Read] and [Session.Submit].
func Bytes[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | float32 | float64](numbers []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(numbers))), len(numbers)*int(unsafe.Sizeof(one)))
}

// Alloc allocates size bytes of zeroed device memory.
func (s *Session) Alloc(ctx context.Context, size uint64) (*Buffer, error) {
	reply, err := s.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemAlloc{MemAlloc: &leasepb.MemAlloc{Bytes: size}}})
	if err != nil {
		return nil, err
	}
	return &Buffer{s, reply.GetMemAlloc().GetHandle(), reply.GetMemAlloc().GetAddress(), size}, nil
}

// Size returns the allocated bytes.
func (b *Buffer) Size() uint64 { return b.orNone().size }

// Address returns the device address, for structs that hold pointers. Pass the buffer or a [Pointer] as a kernel argument
// instead.
func (b *Buffer) Address() uint64 { return b.orNone().address }

// Free frees the memory.
func (b *Buffer) Free(ctx context.Context) error {
	b = b.orNone()
	_, err := b.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemFree{MemFree: &leasepb.MemFree{Handle: b.handle}}})
	return err
}

// Write copies data to the buffer at offset. From 1 MiB on it uses memory shared with the broker, if the broker is on this
// host and the lease has 8 MiB of shared memory left.
func (b *Buffer) Write(ctx context.Context, offset uint64, data []byte) error {
	b = b.orNone()
	staged, err := b.writeStaged(ctx, offset, data)
	if err != nil || staged == len(data) && staged > 0 {
		return err
	}
	offset, data = offset+uint64(staged), data[staged:]
	_, err = b.transfer(ctx, len(data), func(from, to int) *leasepb.Request {
		// Copy the data: the caller may reuse it once ctx ends.
		return &leasepb.Request{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
			Handle: b.handle, Offset: offset + uint64(from), Source: &leasepb.MemWrite_Data{Data: bytes.Clone(data[from:to])},
		}}}
	}, func(int, *leasepb.Reply) error { return nil })
	return err
}

// Read copies from the buffer at offset, after all earlier launches have finished. It uses shared memory as Write does.
func (b *Buffer) Read(ctx context.Context, offset uint64, data []byte) error {
	_, err := b.read(ctx, offset, data)
	return err
}

func (b *Buffer) read(ctx context.Context, offset uint64, data []byte) (int, error) {
	b = b.orNone()
	staged, err := b.readStaged(ctx, offset, data)
	if err != nil || staged == len(data) && staged > 0 {
		return staged, err
	}
	offset, data = offset+uint64(staged), data[staged:]
	n, err := b.transfer(ctx, len(data), func(from, to int) *leasepb.Request {
		return &leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{
			Handle: b.handle, Offset: offset + uint64(from), Destination: &leasepb.MemRead_Bytes{Bytes: uint64(to - from)},
		}}}
	}, func(from int, reply *leasepb.Reply) error {
		got := reply.GetMemRead().GetData()
		if want := min(chunk, len(data)-from); len(got) != want {
			return fmt.Errorf("the broker sent %d bytes of %d", len(got), want)
		}
		copy(data[from:], got)
		return nil
	})
	return staged + n, err
}

// transfer requests one piece after the other, up to ahead of them in flight. It returns the bytes done.
func (b *Buffer) transfer(ctx context.Context, size int, request func(from, to int) *leasepb.Request, take func(from int, reply *leasepb.Reply) error) (int, error) {
	const ahead = 4
	var calls []chan *leasepb.Reply
	done := 0
	for from := 0; from < size || from == 0 || len(calls) > 0; {
		if (from < size || from == 0) && len(calls) < ahead {
			to := min(from+chunk, size)
			c, err := b.session.enqueue(ctx, request(from, to), true)
			if err != nil {
				return done, err
			}
			calls = append(calls, c)
			from = max(to, 1)
			continue
		}
		reply, err := b.session.wait(ctx, calls[0])
		if err == nil {
			err = take(done, reply)
		}
		if err != nil {
			return done, err
		}
		calls = calls[1:]
		done = min(done+chunk, size)
	}
	return done, nil
}

// WriteAt implements [io.WriterAt].
func (b *Buffer) WriteAt(data []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("write to a buffer at %d: an offset is not negative", offset)
	}
	if err := b.Write(context.Background(), uint64(offset), data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// ReadAt implements [io.ReaderAt]. It stops at the buffer's end with [io.EOF].
func (b *Buffer) ReadAt(data []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read a buffer at %d: an offset is not negative", offset)
	}
	if b = b.orNone(); b == noBuffer {
		return 0, b.session.err
	}
	if uint64(offset) >= b.size {
		return 0, io.EOF
	}
	var end error
	if left := b.size - uint64(offset); uint64(len(data)) > left {
		data, end = data[:left], io.EOF
	}
	if n, err := b.read(context.Background(), uint64(offset), data); err != nil {
		return n, err
	}
	return len(data), end
}

// Set fills size bytes at offset with value.
func (b *Buffer) Set(ctx context.Context, offset, size uint64, value byte) error {
	b = b.orNone()
	_, err := b.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemSet{MemSet: &leasepb.MemSet{
		Handle: b.handle, Offset: offset, Bytes: size, Value: uint32(value),
	}}})
	return err
}

// Copy copies within the device, from another buffer or another part of this one.
func (b *Buffer) Copy(ctx context.Context, offset uint64, from *Buffer, fromOffset, size uint64) error {
	b = b.orNone()
	_, err := b.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemCopy{MemCopy: &leasepb.MemCopy{
		To: b.handle, ToOffset: offset, From: from.orNone().handle, FromOffset: fromOffset, Bytes: size,
	}}})
	return err
}

// Of returns the same buffer for another connection to the lease's session.
func (b *Buffer) Of(s *Session) *Buffer {
	other := *b.orNone()
	other.session = s
	return &other
}
