// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Module is code that is loaded.
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

// Log is what the driver's compiler said; it may be empty.
func (m *Module) Log() string { return m.log }

// Unload waits for its kernels to end.
func (m *Module) Unload(ctx context.Context) error {
	_, err := m.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_ModuleUnload{ModuleUnload: &leasepb.ModuleUnload{Module: m.handle}}})
	return err
}

// Dim is the size of a grid in blocks, or of a block in threads; 0 is 1.
type Dim struct{ X, Y, Z uint32 }

// Shape is how a kernel is launched.
type Shape struct {
	Grid, Block Dim
	SharedBytes uint32
}

// Pointer is an address within a buffer, as a kernel's argument.
type Pointer struct {
	Buffer *Buffer
	Offset uint64
}

// Launch puts a kernel into the session's stream and returns at once; what is wrong with it, [Session.Sync] says.
//
// An argument is a [*Buffer], a [Pointer], or a value of fixed size such as uint32 or float32, of exactly the parameter's size; bytes are
// passed on as they are.
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
		return &leasepb.Pointer{Handle: v.handle}, true
	case Pointer:
		return &leasepb.Pointer{Handle: v.Buffer.handle, Offset: v.Offset}, true
	}
	return nil, false
}

// Submission is a module, buffers and launches in one request, of which nothing stays.
type Submission struct {
	Image    []byte
	Buffers  []SubmittedBuffer
	Launches []SubmittedLaunch
}

// SubmittedBuffer has Size bytes, which begin with Data and are zero otherwise.
type SubmittedBuffer struct {
	Size uint64
	Data []byte
	Out  bool // it is among what Submit returns
}

// BufferNumber is a kernel's argument: the address of a submission's buffer, the first of which is 0.
type BufferNumber int

// SubmittedLaunch is a launch as in [Module.Launch], with a [BufferNumber] where that has a buffer.
type SubmittedLaunch struct {
	Kernel    string
	Shape     Shape
	Arguments []any
}

// Submit carries out a submission, and returns what is in its buffers with Out, in their order.
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
