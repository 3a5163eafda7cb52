// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// fakeDevice panics on the use of memory or code that it did not provide, or that is freed. Its kernels are "nothing";
// "fault", which destroys the context; and "big", which exceeds the memory. Their variable is "factor".
type fakeDevice struct {
	room   uint64
	next   cuda.Address
	memory map[cuda.Address][]byte
	// variable is that of all modules.
	variable [16]byte
	loaded   int
	pinned   int
	fault    error // of the context, reported by the next call
	fails    map[string]error
	ran      []launched
	// during is called in each Sync and Load.
	during atomic.Pointer[func()]
}

type launched struct {
	shape   cuda.Shape
	values  []byte
	offsets []uint32
}

const (
	fakeMemory   = 1 << 30
	fakeVariable = 0x10000 // address
)

func newFakeDevice() *fakeDevice {
	return &fakeDevice{room: fakeMemory, next: 0x7f0000000000, memory: map[cuda.Address][]byte{}, fails: map[string]error{}}
}

func failing(function string, result cuda.Result) error {
	return &cuda.Error{Function: function, Result: result}
}

func (d *fakeDevice) at(start cuda.Address, size uint64) []byte {
	if start >= fakeVariable && start < fakeVariable+cuda.Address(len(d.variable)) {
		return d.variable[start-fakeVariable:][:size:size]
	}
	for first, memory := range d.memory {
		if start >= first && uint64(start-first) < uint64(len(memory)) {
			return memory[start-first:][:size:size]
		}
	}
	panic(fmt.Sprintf("nothing is at %#x", start))
}

func (d *fakeDevice) broken(function string) error {
	if d.fault != nil {
		return d.fault
	}
	return d.fails[function]
}

func (d *fakeDevice) Alloc(size uint64) (cuda.Address, error) {
	if err := d.broken("Alloc"); err != nil {
		return 0, err
	}
	if size == 0 || size > fakeMemory {
		panic(fmt.Sprintf("%d bytes requested from the driver", size))
	}
	if size > d.room {
		return 0, failing("cuMemAlloc_v2", cuda.OutOfMemory)
	}
	start := d.next
	d.next += cuda.Address(size+511) &^ 511
	d.room -= size
	d.memory[start] = make([]byte, size)
	return start, nil
}

func (d *fakeDevice) Free(start cuda.Address) error {
	if err := d.broken("Free"); err != nil {
		return err
	}
	memory, ok := d.memory[start]
	if !ok {
		panic("memory is freed that is not there")
	}
	d.room += uint64(len(memory))
	delete(d.memory, start)
	return nil
}

func (d *fakeDevice) Write(to cuda.Address, from []byte) error {
	if err := d.broken("Write"); err != nil {
		return err
	}
	copy(d.at(to, uint64(len(from))), from)
	return nil
}

func (d *fakeDevice) Read(to []byte, from cuda.Address) error {
	if err := d.broken("Read"); err != nil {
		return err
	}
	copy(to, d.at(from, uint64(len(to))))
	return nil
}

func (d *fakeDevice) Set(start cuda.Address, value byte, size uint64) error {
	if err := d.broken("Set"); err != nil {
		return err
	}
	copy(d.at(start, size), bytes.Repeat([]byte{value}, int(size)))
	return nil
}

func (d *fakeDevice) Copy(to, from cuda.Address, size uint64) error {
	if err := d.broken("Copy"); err != nil {
		return err
	}
	copy(d.at(to, size), d.at(from, size))
	return nil
}

func (d *fakeDevice) Load(image []byte) (m cuda.Module, log string, err error) {
	d.call()
	if err := d.broken("Load"); err != nil {
		return m, "", err
	}
	if !bytes.HasPrefix(image, []byte("ptx")) {
		return m, "line 1: what is that?", failing("cuModuleLoadDataEx", cuda.InvalidPTX)
	}
	d.loaded++
	return m, "fine", nil
}

func (d *fakeDevice) Unload(cuda.Module) error {
	if err := d.broken("Unload"); err != nil {
		return err
	}
	if d.loaded--; d.loaded < 0 {
		panic("a module is unloaded that is not there")
	}
	return nil
}

func (d *fakeDevice) Find(_ cuda.Module, kernel string) (*cuda.Function, error) {
	if err := d.broken("Find"); err != nil {
		return nil, err
	}
	switch kernel {
	case "nothing", "fault", "big":
		return &cuda.Function{MaxThreads: 1024, Described: true, Name: kernel}, nil
	case "pointer":
		return &cuda.Function{MaxThreads: 256, Described: true, Name: kernel, Parameters: []cuda.Parameter{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}}}, nil
	case "unknown":
		return &cuda.Function{MaxThreads: 1024, Name: kernel}, nil
	}
	return nil, failing("cuModuleGetFunction", cuda.NotFound)
}

func (d *fakeDevice) Variable(_ cuda.Module, name string) (cuda.Range, error) {
	if err := d.broken("Variable"); err != nil {
		return cuda.Range{}, err
	}
	if name != "factor" {
		return cuda.Range{}, failing("cuModuleGetGlobal_v2", cuda.NotFound)
	}
	return cuda.Range{Start: fakeVariable, Size: uint64(len(d.variable))}, nil
}

func (*fakeDevice) Capability() string { return "9.0" }

func (d *fakeDevice) Launch(f *cuda.Function, shape cuda.Shape, values []byte, offsets []uint32) error {
	if err := d.broken("Launch"); err != nil {
		return err
	}
	for _, offset := range offsets {
		_ = values[:offset]
	}
	if d.ran = append(d.ran, launched{shape, bytes.Clone(values), append([]uint32(nil), offsets...)}); len(d.ran) > 1000 {
		d.ran = nil
	}
	switch f.Name {
	case "fault":
		d.fault = failing("cuStreamSynchronize", 700)
	case "big":
		return failing("cuLaunchKernel", cuda.OutOfMemory)
	}
	return nil
}

func (d *fakeDevice) call() {
	if during := d.during.Load(); during != nil {
		(*during)()
	}
}

func (d *fakeDevice) Sync() error {
	d.call()
	return d.broken("Sync")
}

func (d *fakeDevice) Pin(memory []byte) error {
	if err := d.broken("Pin"); err != nil {
		return err
	}
	d.pinned++
	return nil
}

func (d *fakeDevice) Unpin([]byte) error {
	if err := d.broken("Unpin"); err != nil {
		return err
	}
	if d.pinned--; d.pinned < 0 {
		panic("memory is unpinned that was not pinned")
	}
	return nil
}
