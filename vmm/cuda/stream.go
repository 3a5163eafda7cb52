// SPDX-License-Identifier: Apache-2.0

package cuda

// #include "stream.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// Results that a program can handle.
const (
	InvalidValue   Result = 1
	InvalidImage   Result = 200
	NoBinary       Result = 209 // the image has none for this device
	InvalidPTX     Result = 218
	UnsupportedPTX Result = 222 // newer than the driver
	NotFound       Result = 500
	OutOfResources Result = 701 // for a launch
	notSupported   Result = 801
)

// Lost reports whether the result means that the context, and everything in it, is unusable.
func (r Result) Lost() bool {
	switch r {
	case 201, 709, // context destroyed
		214, 220, 226, // memory or links of the device
		700, 702, 710, 714, 715, 716, 717, 718, 719, 720, 721, // kernels
		999:
		return true
	}
	return false
}

const (
	functionMaxThreads    = 0
	functionDynamicShared = 8
	staticSharedLimit     = 48 << 10 // a launch with more must raise the limit first
)

var loadStreams = sync.OnceValue(func() error {
	var message [256]C.char
	if missing := C.stream_load(&message[0], C.size_t(len(message))); missing != nil {
		return fmt.Errorf("cuda: %w: %s", ErrNoDriver, C.GoString(missing))
	}
	return nil
})

// Stream is a stream of a device's primary context. Its work runs in order. Its methods may be called on any thread.
type Stream struct {
	context C.CUcontext
	stream  C.CUstream
}

// OpenStream creates a stream. It exists until the device's context ends.
func (d *Device) OpenStream() (*Stream, error) {
	if err := loadStreams(); err != nil {
		return nil, err
	}
	s := &Stream{context: d.context}
	_, err := check(C.stream_open(d.context, &s.stream))
	return s, err
}

// Alloc allocates device memory, with undefined contents.
func (s *Stream) Alloc(size uint64) (Address, error) {
	var start C.CUdeviceptr
	_, err := check(C.stream_alloc(s.context, &start, C.size_t(size)))
	return Address(start), err
}

// Free waits for work that uses the memory, and frees it.
func (s *Stream) Free(start Address) error {
	_, err := check(C.stream_free(s.context, C.CUdeviceptr(start)))
	return err
}

// Write copies to the device. The caller may reuse from on return, unless it is pinned.
func (s *Stream) Write(to Address, from []byte) error {
	_, err := check(C.stream_write(s.context, s.stream, C.CUdeviceptr(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from))))
	return err
}

// Read copies from the device, and returns when the copy is complete.
func (s *Stream) Read(to []byte, from Address) error {
	_, err := check(C.stream_read(s.context, s.stream, unsafe.Pointer(unsafe.SliceData(to)), C.CUdeviceptr(from), C.size_t(len(to))))
	if err != nil {
		return err
	}
	return s.Sync()
}

// Set fills device memory with a byte.
func (s *Stream) Set(start Address, value byte, size uint64) error {
	_, err := check(C.stream_set(s.context, s.stream, C.CUdeviceptr(start), C.uchar(value), C.size_t(size)))
	return err
}

// Copy copies within device memory.
func (s *Stream) Copy(to, from Address, size uint64) error {
	_, err := check(C.stream_copy(s.context, s.stream, C.CUdeviceptr(to), C.CUdeviceptr(from), C.size_t(size)))
	return err
}

// Sync waits for all work on the stream.
func (s *Stream) Sync() error {
	_, err := check(C.stream_sync(s.context, s.stream))
	return err
}

// Module is loaded code (CUmodule).
type Module struct{ module C.CUmodule }

// Load loads PTX, a cubin or a fatbin. It returns the compiler's log, also on failure.
func (s *Stream) Load(image []byte) (m Module, log string, err error) {
	var failures, notes [16 << 10]byte
	text := append(image[:len(image):len(image)], 0)
	_, err = check(C.stream_load_module(s.context, &m.module, unsafe.Pointer(unsafe.SliceData(text)),
		(*C.char)(unsafe.Pointer(&failures[0])), C.size_t(len(failures)), (*C.char)(unsafe.Pointer(&notes[0])), C.size_t(len(notes))))
	return m, untilZero(failures[:]) + untilZero(notes[:]), err
}

func untilZero(text []byte) string {
	text, _, _ = bytes.Cut(text, []byte{0})
	return string(text)
}

// Unload unloads the module; its functions become invalid.
func (s *Stream) Unload(m Module) error {
	_, err := check(C.stream_unload_module(s.context, m.module))
	return err
}

// Parameter is the position of a kernel parameter, in bytes.
type Parameter struct {
	Offset, Size uint32
}

// Function is a kernel of a module.
type Function struct {
	function C.stream_function
	Name     string
	// MaxThreads is the maximum of threads per block.
	MaxThreads int
	// Parameters are valid if Described is true, which needs a driver of CUDA 12.4 or later.
	Parameters []Parameter
	Described  bool
	dynamic    uint32
}

// Find returns the kernel with that name.
func (s *Stream) Find(m Module, name string) (*Function, error) {
	text := append([]byte(name), 0)
	f := &Function{Name: name, dynamic: staticSharedLimit}
	if _, err := check(C.stream_find(s.context, m.module, (*C.char)(unsafe.Pointer(&text[0])), &f.function)); err != nil {
		return nil, err
	}
	var value C.int
	if _, err := check(C.stream_attribute(s.context, f.function, functionMaxThreads, &value)); err != nil {
		return nil, err
	}
	f.MaxThreads = int(value)
	for i := C.size_t(0); ; i++ {
		var offset, size C.size_t
		_, err := check(C.stream_parameter(s.context, f.function, i, &offset, &size))
		switch {
		case errors.Is(err, InvalidValue):
			f.Described = true
			return f, nil
		case errors.Is(err, notSupported):
			return f, nil
		case err != nil:
			return nil, err
		}
		f.Parameters = append(f.Parameters, Parameter{uint32(offset), uint32(size)})
	}
}

// Variable returns where a variable of the module is, such as a __constant__ or __device__ one.
func (s *Stream) Variable(m Module, name string) (Range, error) {
	text := append([]byte(name), 0)
	var start C.CUdeviceptr
	var size C.size_t
	_, err := check(C.stream_variable(s.context, m.module, (*C.char)(unsafe.Pointer(&text[0])), &start, &size))
	return Range{Address(start), uint64(size)}, err
}

// Shape is the geometry of a launch.
type Shape struct {
	Grid, Block [3]uint32
	SharedBytes uint32
}

// Launch launches a kernel. Parameter i is at offsets[i] of values; the driver reads the size that the kernel declares.
func (s *Stream) Launch(f *Function, shape Shape, values []byte, offsets []uint32) error {
	if shape.SharedBytes > f.dynamic {
		if _, err := check(C.stream_set_attribute(s.context, f.function, functionDynamicShared, C.int(shape.SharedBytes))); err != nil {
			return err
		}
		f.dynamic = shape.SharedBytes
	}
	numbers := [7]C.uint{
		C.uint(shape.Grid[0]), C.uint(shape.Grid[1]), C.uint(shape.Grid[2]),
		C.uint(shape.Block[0]), C.uint(shape.Block[1]), C.uint(shape.Block[2]), C.uint(shape.SharedBytes),
	}
	_, err := check(C.stream_launch(s.context, s.stream, f.function, &numbers[0], (*C.char)(unsafe.Pointer(unsafe.SliceData(values))),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(offsets))), C.size_t(len(offsets))))
	return err
}

// Pin page-locks memory of this process for the device, so that copies bypass a staging buffer. The memory must not be on
// Go's heap.
func (s *Stream) Pin(memory []byte) error {
	_, err := check(C.stream_pin(s.context, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory))))
	return err
}

// Unpin reverts Pin.
func (s *Stream) Unpin(memory []byte) error {
	_, err := check(C.stream_unpin(s.context, unsafe.Pointer(unsafe.SliceData(memory))))
	return err
}
