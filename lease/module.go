// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Module is loaded code.
type Module struct {
	session *Session
	handle  uint64
	log     string
}

// Load loads PTX, a cubin or a fatbin.
func (s *Session) Load(ctx context.Context, image []byte) (*Module, error) {
	reply, err := s.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_ModuleLoad{ModuleLoad: &leasepb.ModuleLoad{Image: bytes.Clone(image)}}})
	if err != nil {
		return nil, err
	}
	return &Module{s, reply.GetModuleLoad().GetModule(), reply.GetModuleLoad().GetLog()}, nil
}

// Log returns the driver's compiler log, which may be empty.
func (m *Module) Log() string { return m.log }

// Variable returns a variable of the module, such as a __constant__ or __device__ one, as a buffer. It is freed with the module.
func (m *Module) Variable(ctx context.Context, name string) (*Buffer, error) {
	reply, err := m.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_ModuleVariable{ModuleVariable: &leasepb.ModuleVariable{Module: m.handle, Name: name}}})
	if err != nil {
		return nil, err
	}
	v := reply.GetModuleVariable()
	return &Buffer{m.session, v.GetHandle(), v.GetAddress(), v.GetBytes()}, nil
}

// Unload unloads the module once its kernels have finished.
func (m *Module) Unload(ctx context.Context) error {
	_, err := m.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_ModuleUnload{ModuleUnload: &leasepb.ModuleUnload{Module: m.handle}}})
	return err
}

// Dim is the size of a grid in blocks, or of a block in threads. 0 means 1.
type Dim struct{ X, Y, Z uint32 }

// Shape is the geometry of a launch.
type Shape struct {
	Grid, Block Dim
	SharedBytes uint32
}

// Pointer is a kernel argument: an address within a buffer.
type Pointer struct {
	Buffer *Buffer
	Offset uint64
}

// Launch sends a kernel to the session and returns at once: requests of other connections may still precede it. After [Session.Sync], [Buffer.Read] or
// another call with an answer, all connections read the kernel's results. Sync returns a failure.
//
// An argument is a [*Buffer], a [Pointer], or a value of fixed size such as uint32 or float32, of exactly the parameter's
// size. A byte slice is passed unchanged.
func (m *Module) Launch(ctx context.Context, kernel string, shape Shape, arguments ...any) error {
	l, err := launch(kernel, shape, arguments, pointerToBuffer)
	if err != nil {
		return err
	}
	l.Module = m.handle
	_, err = m.session.enqueue(ctx, &leasepb.Request{Operation: &leasepb.Request_Launch{Launch: l}}, false)
	return err
}

func dim(d Dim) *leasepb.Dim { return &leasepb.Dim{X: d.X, Y: d.Y, Z: d.Z} }

func launch(kernel string, shape Shape, arguments []any, pointer func(any) (*leasepb.Pointer, bool)) (*leasepb.Launch, error) {
	l := &leasepb.Launch{
		Kernel: kernel, Grid: dim(shape.Grid), Block: dim(shape.Block), SharedBytes: shape.SharedBytes,
		Arguments: make([]*leasepb.Argument, len(arguments)),
	}
	for i, value := range arguments {
		if p, ok := pointer(value); ok {
			if p.GetHandle() == 0 {
				return nil, fmt.Errorf("argument %d of %s is no buffer: pass uint64(0) for a null pointer", i, kernel)
			}
			l.Arguments[i] = &leasepb.Argument{Value: &leasepb.Argument_Pointer{Pointer: p}}
			continue
		}
		raw, err := binary.Append(nil, binary.LittleEndian, value)
		if err != nil {
			return nil, fmt.Errorf("argument %d of %s is a %T: neither a buffer nor a value of fixed size", i, kernel, value)
		}
		l.Arguments[i] = &leasepb.Argument{Value: &leasepb.Argument_Raw{Raw: raw}}
	}
	return l, nil
}

func pointerToBuffer(value any) (*leasepb.Pointer, bool) {
	switch v := value.(type) {
	case *Buffer:
		return &leasepb.Pointer{Handle: v.orNone().handle}, true
	case Pointer:
		return &leasepb.Pointer{Handle: v.Buffer.orNone().handle, Offset: v.Offset}, true
	}
	return nil, false
}

// Submission is a module, buffers and launches in one request. All are freed afterwards.
type Submission struct {
	Image    []byte
	Buffers  []SubmittedBuffer
	Launches []SubmittedLaunch
}

// SubmittedBuffer is a buffer of Size bytes that starts with Data, followed by zeros.
type SubmittedBuffer struct {
	Size uint64
	Data []byte
	Out  bool // returned by Submit
}

// BufferNumber is a kernel argument: the address of a submission's buffer, counted from 0.
type BufferNumber int

// SubmittedLaunch is a launch as in [Module.Launch], with [BufferNumber] in place of buffers.
type SubmittedLaunch struct {
	Kernel    string
	Shape     Shape
	Arguments []any
}

// Submit executes a submission, and returns the contents of the buffers with Out, in order.
func (s *Session) Submit(ctx context.Context, work Submission) ([][]byte, error) {
	m := &leasepb.Submit{Image: bytes.Clone(work.Image)}
	for _, b := range work.Buffers {
		m.Buffers = append(m.Buffers, &leasepb.Submit_Buffer{Bytes: b.Size, Data: bytes.Clone(b.Data), Out: b.Out})
	}
	for _, one := range work.Launches {
		l, err := launch(one.Kernel, one.Shape, one.Arguments, func(value any) (*leasepb.Pointer, bool) {
			n, ok := value.(BufferNumber)
			return &leasepb.Pointer{Handle: uint64(n) + 1}, ok
		})
		if err != nil {
			return nil, err
		}
		m.Launches = append(m.Launches, l)
	}
	reply, err := s.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_Submit{Submit: m}})
	if err != nil {
		return nil, err
	}
	return reply.GetSubmit().GetBuffers(), nil
}
