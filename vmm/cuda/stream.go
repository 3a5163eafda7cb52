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

// Results that a program can do something about.
const (
	InvalidValue   Result = 1
	InvalidImage   Result = 200
	NoBinary       Result = 209 // none in the image is for this device
	InvalidPTX     Result = 218
	UnsupportedPTX Result = 222 // newer than the driver
	NotFound       Result = 500
	OutOfResources Result = 701 // for a launch
	notSupported   Result = 801
)

// Lost says whether a context is of no use after that result: all that was in it is gone.
func (r Result) Lost() bool {
	switch r {
	case 201, 709, // of a context that is gone
		214, 220, 226, // of the card's memory or links
		700, 702, 710, 714, 715, 716, 717, 718, 719, 720, 721, // of a kernel
		999:
		return true
	}
	return false
}

const (
	functionMaxThreads    = 0
	functionDynamicShared = 8
	staticSharedLimit     = 48 << 10 // a launch with more of it has to ask first
)

var loadStreams = sync.OnceValue(func() error {
	var message [256]C.char
	if missing := C.stream_load(&message[0], C.size_t(len(message))); missing != nil {
		return fmt.Errorf("cuda: %w: %s", ErrNoDriver, C.GoString(missing))
	}
	return nil
})

// Stream is a stream of a device's primary context. Everything on it runs in order. As a [Device]'s, its methods may be called on any thread.
type Stream struct {
	context C.CUcontext
	stream  C.CUstream
}

// OpenStream makes one; it lives as long as the device's context.
func (d *Device) OpenStream() (*Stream, error) {
	if err := loadStreams(); err != nil {
		return nil, err
	}
	s := &Stream{context: d.context}
	_, err := check(C.stream_open(d.context, &s.stream))
	return s, err
}

// Alloc takes memory of the device, whatever it has in it.
func (s *Stream) Alloc(size uint64) (Address, error) {
	var start C.CUdeviceptr
	_, err := check(C.stream_alloc(s.context, &start, C.size_t(size)))
	return Address(start), err
}

// Free waits for what uses the memory.
func (s *Stream) Free(start Address) error {
	_, err := check(C.stream_free(s.context, C.CUdeviceptr(start)))
	return err
}

// Write copies to the device. Memory that is not pinned may be used again when it returns.
func (s *Stream) Write(to Address, from []byte) error {
	_, err := check(C.stream_write(s.context, s.stream, C.CUdeviceptr(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from))))
	return err
}

// Read copies from the device, and returns when that is done.
func (s *Stream) Read(to []byte, from Address) error {
	_, err := check(C.stream_read(s.context, s.stream, unsafe.Pointer(unsafe.SliceData(to)), C.CUdeviceptr(from), C.size_t(len(to))))
	if err != nil {
		return err
	}
	return s.Sync()
}

// Set fills memory of the device with a byte.
func (s *Stream) Set(start Address, value byte, size uint64) error {
	_, err := check(C.stream_set(s.context, s.stream, C.CUdeviceptr(start), C.uchar(value), C.size_t(size)))
	return err
}

// Copy copies within the device.
func (s *Stream) Copy(to, from Address, size uint64) error {
	_, err := check(C.stream_copy(s.context, s.stream, C.CUdeviceptr(to), C.CUdeviceptr(from), C.size_t(size)))
	return err
}

// Sync waits for everything on the stream.
func (s *Stream) Sync() error {
	_, err := check(C.stream_sync(s.context, s.stream))
	return err
}

// Module is code that is loaded, as CUmodule.
type Module struct{ module C.CUmodule }

// Load loads PTX, a cubin or a fatbin. The log is the compiler's, of a failure too.
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

// Unload unloads it; its functions are gone.
func (s *Stream) Unload(m Module) error {
	_, err := check(C.stream_unload_module(s.context, m.module))
	return err
}

// Parameter is where a kernel has one among its parameters.
type Parameter struct {
	Offset, Size uint32
}

// Function is a kernel of a module.
type Function struct {
	function C.stream_function
	Name     string
	// MaxThreads is how many a block may have.
	MaxThreads int
	// Parameters are known if Described, which needs a driver of CUDA 12.4.
	Parameters []Parameter
	Described  bool
	dynamic    uint32
}

// Find looks up a kernel.
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

// Shape is how a kernel is launched.
type Shape struct {
	Grid, Block [3]uint32
	SharedBytes uint32
}

// Launch puts a kernel into the stream. Its parameter i is at offsets[i] of values; the driver reads as many bytes as the kernel says.
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

// Pin makes memory of this process known to the device, so that copies go straight to it and from it. It must not be of Go's heap.
func (s *Stream) Pin(memory []byte) error {
	_, err := check(C.stream_pin(s.context, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory))))
	return err
}

// Unpin ends that.
func (s *Stream) Unpin(memory []byte) error {
	_, err := check(C.stream_unpin(s.context, unsafe.Pointer(unsafe.SliceData(memory))))
	return err
}
