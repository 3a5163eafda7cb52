// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Device executes a session's operations. Its methods are called one at a time, on any thread.
type Device interface {
	// Alloc returns zeroed memory.
	Alloc(bytes uint64) (cuda.Address, error)
	Free(cuda.Address) error
	// Write may return before pinned memory has been read; Sync waits for that. Read waits for the copy.
	Write(to cuda.Address, from []byte) error
	Read(to []byte, from cuda.Address) error
	Set(start cuda.Address, value byte, bytes uint64) error
	Copy(to, from cuda.Address, bytes uint64) error
	Load(image []byte) (m cuda.Module, log string, err error)
	Unload(cuda.Module) error
	Find(m cuda.Module, kernel string) (*cuda.Function, error)
	Variable(m cuda.Module, name string) (cuda.Range, error)
	Launch(f *cuda.Function, shape cuda.Shape, values []byte, offsets []uint32) error
	Sync() error
	Pin(memory []byte) error
	Unpin(memory []byte) error
	// Capability is the compute capability, such as 9.0.
	Capability() string
}

type context struct {
	*cuda.Stream
	capability string
}

func (c *context) Capability() string { return c.capability }

// OpenDevice returns a function that opens the configured device, for [New].
func OpenDevice(config Config) func() (Device, error) {
	return func() (Device, error) {
		device, err := open(config)
		if err == nil {
			return device, nil
		}
		if cause := unattached(); cause != nil && errors.Is(err, cuda.OutOfMemory) {
			return nil, fmt.Errorf("%w: cannot attach to the lease's slice: %w (give uid %d access to each directory of that path, and start gpusliced)",
				err, cause, os.Getuid())
		}
		return nil, err
	}
}

func open(config Config) (Device, error) {
	if config.Reserve {
		return openReserved(config.Device, config.VRAM)
	}
	return openContext(config.Device)
}

// unattached returns the error of connecting to the enforcer, or nil. The interceptor grants an unattached process no memory,
// and the driver then reports only that memory is exhausted.
func unattached() error {
	dir := os.Getenv(api.DirEnv)
	if dir == "" {
		return nil
	}
	c, err := net.Dial("unixpacket", filepath.Join(dir, api.AttachSocketName))
	if err != nil {
		return err
	}
	return c.Close()
}

func openContext(ordinal int) (*context, error) {
	device, err := cuda.Open(ordinal)
	if err != nil {
		return nil, err
	}
	c, err := newContext(device)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return c, nil
}

func newContext(device *cuda.Device) (*context, error) {
	capability, err := device.ComputeCapability()
	if err != nil {
		return nil, err
	}
	stream, err := device.OpenStream()
	if err != nil {
		return nil, err
	}
	return &context{stream, capability}, nil
}

func (c *context) Alloc(bytes uint64) (cuda.Address, error) {
	start, err := c.Stream.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	if err := c.Set(start, 0, bytes); err != nil {
		return 0, errors.Join(fmt.Errorf("clear new memory: %w", err), c.Free(start))
	}
	return start, nil
}
