// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"math"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Bounds of what one session can make the broker hold.
const (
	maxBuffers     = 1 << 16
	maxModules     = 1 << 10
	maxImage       = 64 << 20
	maxImages      = 256 << 20 // of all modules
	maxKernelNames = 1 << 12   // of one module
	maxData        = 16 << 20  // in one request or reply
)

// engine carries out requests on a device. It is used by one goroutine; its counters, by any.
type engine struct {
	device Device
	// watch bounds the time of a load; the function that it returns ends that.
	watch func() (done func())

	last     uint64 // handle
	buffers  map[uint64]buffer
	modules  map[uint64]*module
	images   uint64 // bytes of the modules' images
	memories map[uint64][]byte
	// gone is what every request is answered with since a fault took the context.
	gone *leasepb.Failure
	args arguments

	vram  uint64
	stats counters
}

type counters struct {
	allocated, buffers, modules                  atomic.Uint64
	requests, failures, launches, launchFailures atomic.Uint64
	syncs, syncFailures, bytesWritten, bytesRead atomic.Uint64
}

type buffer struct {
	start cuda.Address
	bytes uint64
}

type module struct {
	loaded  cuda.Module
	image   uint64 // bytes
	kernels map[string]*cuda.Function
}

// history is what a client's next sync has to tell.
type history struct {
	failure *leasepb.Failure // of the first launch that failed since the last sync
}

func newEngine(device Device, vram uint64) *engine {
	return &engine{
		device: device, vram: vram,
		buffers: map[uint64]buffer{}, modules: map[uint64]*module{}, memories: map[uint64][]byte{},
		watch: func() func() { return func() {} },
	}
}

// do carries out one request. A nil failure is success.
func (e *engine) do(h *history, r *leasepb.Request) *leasepb.Reply {
	reply := &leasepb.Reply{Sequence: r.GetSequence()}
	reply.Failure = e.perform(h, r, reply)
	e.stats.requests.Add(1)
	if reply.Failure != nil {
		e.stats.failures.Add(1)
		reply.Result = nil
	}
	return reply
}

func (e *engine) perform(h *history, r *leasepb.Request, reply *leasepb.Reply) *leasepb.Failure {
	if e.gone != nil {
		return e.gone
	}
	switch o := r.GetOperation().(type) {
	case *leasepb.Request_Launch:
		f := e.launch(o.Launch)
		if f != nil && h.failure == nil {
			h.failure = f
		}
		return f
	case *leasepb.Request_Sync:
		return e.sync(h)
	case *leasepb.Request_MemAlloc:
		handle, b, f := e.alloc(o.MemAlloc.GetBytes())
		reply.Result = &leasepb.Reply_MemAlloc{MemAlloc: &leasepb.MemAllocReply{Handle: handle, Address: uint64(b.start)}}
		return f
	case *leasepb.Request_MemFree:
		return e.free(o.MemFree.GetHandle())
	case *leasepb.Request_MemWrite:
		return e.write(o.MemWrite)
	case *leasepb.Request_MemRead:
		return e.read(o.MemRead, reply)
	case *leasepb.Request_MemSet:
		return e.set(o.MemSet)
	case *leasepb.Request_MemCopy:
		return e.copy(o.MemCopy)
	case *leasepb.Request_ModuleLoad:
		handle, log, f := e.load(o.ModuleLoad.GetImage())
		reply.Result = &leasepb.Reply_ModuleLoad{ModuleLoad: &leasepb.ModuleLoadReply{Module: handle, Log: log}}
		return f
	case *leasepb.Request_ModuleUnload:
		return e.unload(o.ModuleUnload.GetModule())
	case *leasepb.Request_Submit:
		return e.submit(o.Submit, reply)
	}
	return advised(invalid("the request has no operation that this broker knows"), "compare the versions of client and broker")
}

// lost says what it took if the error says that the context is of no use; else it returns nil. All that is asked from then on is answered so, and
// the session ends: the driver gives a process no other context after a fault of one of its kernels (observed on an H100).
func (e *engine) lost(err error) *leasepb.Failure {
	var result cuda.Result
	if !errors.As(err, &result) || !result.Lost() {
		return nil
	}
	e.gone = advised(failed(leasepb.Code_SYNC_FAILED, "a kernel failed: %v; the session's context is lost with its buffers and modules, and the session ends", err),
		"acquire another lease; no other session is touched")
	return e.gone
}

// driverFailed is the failure of a driver's call.
func (e *engine) driverFailed(code leasepb.Code, err error) *leasepb.Failure {
	if f := e.lost(err); f != nil {
		return f
	}
	return failed(code, "%v", err)
}

func (e *engine) handle() uint64 {
	e.last++
	return e.last
}

// --- memory ---

func (e *engine) alloc(bytes uint64) (uint64, buffer, *leasepb.Failure) {
	if bytes == 0 {
		return 0, buffer{}, invalid("a buffer of 0 bytes: it has at least 1")
	}
	if len(e.buffers) >= maxBuffers {
		return 0, buffer{}, invalid("the session has %d buffers, which is as many as it can have", maxBuffers)
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

// take allocates within the lease. What counts is the bytes asked for: what the driver rounds up is part of the overhead.
func (e *engine) take(bytes uint64) (buffer, *leasepb.Failure) {
	current := e.stats.allocated.Load()
	if bytes > e.vram-current {
		return buffer{}, noRoom(bytes, e.vram, current)
	}
	start, err := e.device.Alloc(bytes)
	switch {
	case errors.Is(err, cuda.OutOfMemory):
		f := noRoom(bytes, e.vram, current)
		f.Message += ", but no piece that large is free: the driver rounds sizes above 1 MiB up to 2 MiB, code takes its part, and reserved memory can be in pieces"
		return buffer{}, f
	case err != nil:
		return buffer{}, e.driverFailed(leasepb.Code_ALLOC_FAILED, err)
	}
	e.stats.allocated.Add(bytes)
	return buffer{start, bytes}, nil
}

func (e *engine) give(b buffer) *leasepb.Failure {
	e.stats.allocated.Add(-b.bytes)
	if err := e.device.Free(b.start); err != nil {
		return e.driverFailed(leasepb.Code_INVALID_HANDLE, err)
	}
	return nil
}

func (e *engine) free(handle uint64) *leasepb.Failure {
	b, f := e.buffer(handle, 0, 0)
	if f != nil {
		return f
	}
	delete(e.buffers, handle)
	e.stats.buffers.Add(^uint64(0))
	return e.give(b)
}

func noHandle(what string, handle uint64) *leasepb.Failure {
	return failed(leasepb.Code_INVALID_HANDLE, "the session has no %s %d: it was never given, or is gone", what, handle)
}

func (b buffer) within(offset, bytes uint64) *leasepb.Failure {
	if offset > b.bytes || bytes > b.bytes-offset {
		return failed(leasepb.Code_INVALID_HANDLE, "%d bytes at offset %d are not within the buffer's %d", bytes, offset, b.bytes)
	}
	return nil
}

// buffer finds the one of that handle, in which [offset, offset + bytes) has to be.
func (e *engine) buffer(handle, offset, bytes uint64) (buffer, *leasepb.Failure) {
	b, ok := e.buffers[handle]
	if !ok {
		return b, noHandle("buffer", handle)
	}
	return b, b.within(offset, bytes)
}

// memory is a range of shared memory.
func (e *engine) memory(r *leasepb.Range) ([]byte, *leasepb.Failure) {
	memory, ok := e.memories[r.GetMemory()]
	if !ok {
		return nil, noHandle("shared memory", r.GetMemory())
	}
	if f := (buffer{bytes: uint64(len(memory))}).within(r.GetOffset(), r.GetBytes()); f != nil {
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
	if err == nil && shared {
		err = e.device.Sync() // the client may use the memory again
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

// --- code ---

func (e *engine) load(image []byte) (uint64, string, *leasepb.Failure) {
	m, log, f := e.compile(image)
	if f != nil {
		return 0, "", f
	}
	handle := e.handle()
	e.modules[handle] = m
	e.stats.modules.Add(1)
	e.images += m.image
	return handle, log, nil
}

func (e *engine) compile(image []byte) (*module, string, *leasepb.Failure) {
	bytes := uint64(len(image))
	switch {
	case bytes == 0:
		return nil, "", invalid("a module without an image")
	case bytes > maxImage:
		return nil, "", invalid("an image of %d bytes: it may have %d", bytes, maxImage)
	case len(e.modules) >= maxModules:
		return nil, "", advised(invalid("the session has %d modules, which is as many as it can have", maxModules), "unload some")
	case bytes > maxImages-e.images:
		return nil, "", advised(invalid("the images of the session's modules may have %d bytes together", maxImages), "unload some")
	}
	done := e.watch()
	loaded, log, err := e.device.Load(image)
	done()
	if err != nil {
		f := e.lost(err)
		if f == nil {
			f = advised(failed(leasepb.Code_LOAD_FAILED, "the driver does not load the module: %v", err), loadAdvice(err))
			f.Log = log
		}
		return nil, "", f
	}
	return &module{loaded: loaded, image: bytes, kernels: map[string]*cuda.Function{}}, log, nil
}

func (e *engine) unload(handle uint64) *leasepb.Failure {
	m, ok := e.modules[handle]
	if !ok {
		return noHandle("module", handle)
	}
	delete(e.modules, handle)
	e.stats.modules.Add(^uint64(0))
	e.images -= m.image
	// Kernels of it that were launched run to their end first.
	err := e.device.Sync()
	if err == nil {
		err = e.device.Unload(m.loaded)
	}
	if err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	return nil
}

func (e *engine) launch(l *leasepb.Launch) *leasepb.Failure {
	e.stats.launches.Add(1)
	f := func() *leasepb.Failure {
		m, ok := e.modules[l.GetModule()]
		if !ok {
			return noHandle("module", l.GetModule())
		}
		return e.start(m, l, func(handle uint64) (buffer, bool) {
			b, ok := e.buffers[handle]
			return b, ok
		})
	}()
	if f != nil {
		e.stats.launchFailures.Add(1)
	}
	return f
}

func (e *engine) start(m *module, l *leasepb.Launch, find func(handle uint64) (buffer, bool)) *leasepb.Failure {
	kernel, f := e.kernel(m, l.GetKernel())
	if f != nil {
		return f
	}
	shape := cuda.Shape{Grid: size(l.GetGrid()), Block: size(l.GetBlock()), SharedBytes: l.GetSharedBytes()}
	if threads := uint64(shape.Block[0]) * uint64(shape.Block[1]); threads > math.MaxUint32 ||
		threads*uint64(shape.Block[2]) > uint64(max(kernel.MaxThreads, 0)) {
		return failed(leasepb.Code_LAUNCH_FAILED, "a block of %d × %d × %d threads: one of %s may have %d",
			shape.Block[0], shape.Block[1], shape.Block[2], l.GetKernel(), kernel.MaxThreads)
	}
	if shape.SharedBytes > math.MaxInt32 {
		return failed(leasepb.Code_LAUNCH_FAILED, "%d bytes of shared memory: no device has that", shape.SharedBytes)
	}
	if f := e.args.lay(kernel, l, find); f != nil {
		return f
	}
	values, offsets := e.args.of(kernel)
	err := e.device.Launch(kernel, shape, values, offsets)
	if err == nil {
		return nil
	}
	if f := e.lost(err); f != nil {
		return f
	}
	f = failed(leasepb.Code_LAUNCH_FAILED, "%s was not launched: %v", l.GetKernel(), err)
	switch {
	case errors.Is(err, cuda.OutOfMemory):
		f.Advice = "the kernel's stack frames need memory beside the buffers: acquire a larger lease, or make them smaller"
	case errors.Is(err, cuda.OutOfResources):
		f.Advice = "use smaller blocks or less shared memory"
	case errors.Is(err, cuda.InvalidValue):
		f.Advice = "a grid has at most 2147483647 × 65535 × 65535 blocks, a block 1024 × 1024 × 64 threads and as much shared memory as the device lets it have"
	}
	return f
}

func size(d *leasepb.Dim) [3]uint32 {
	return [3]uint32{max(d.GetX(), 1), max(d.GetY(), 1), max(d.GetZ(), 1)}
}

func (e *engine) kernel(m *module, name string) (*cuda.Function, *leasepb.Failure) {
	if kernel, ok := m.kernels[name]; ok {
		return kernel, nil
	}
	if name == "" || len(name) > maxKernelNames {
		return nil, failed(leasepb.Code_LAUNCH_FAILED, "a kernel's name has 1 to %d bytes", maxKernelNames)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return nil, failed(leasepb.Code_LAUNCH_FAILED, "a kernel's name has no zero byte")
		}
	}
	kernel, err := e.device.Find(m.loaded, name)
	switch {
	case errors.Is(err, cuda.NotFound):
		return nil, advised(failed(leasepb.Code_LAUNCH_FAILED, "the module has no kernel %q", name),
			"declare it extern \"C\" __global__ (.visible .entry in PTX), or use its mangled name")
	case err != nil:
		return nil, e.driverFailed(leasepb.Code_LAUNCH_FAILED, err)
	}
	m.kernels[name] = kernel
	return kernel, nil
}

func (e *engine) sync(h *history) *leasepb.Failure {
	e.stats.syncs.Add(1)
	f := e.wait()
	if f == nil && h.failure != nil {
		f = advised(failed(leasepb.Code_SYNC_FAILED, "a launch since the last sync failed: %s", h.failure.GetMessage()), h.failure.GetAdvice())
	}
	h.failure = nil
	if f != nil {
		e.stats.syncFailures.Add(1)
	}
	return f
}

func (e *engine) wait() *leasepb.Failure {
	if err := e.device.Sync(); err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	return nil
}

// --- one shot ---

func (e *engine) submit(s *leasepb.Submit, reply *leasepb.Reply) (f *leasepb.Failure) {
	var in, out uint64
	for _, b := range s.GetBuffers() {
		in += uint64(len(b.GetData()))
		if uint64(len(b.GetData())) > b.GetBytes() {
			return invalid("a buffer of %d bytes that begins with %d", b.GetBytes(), len(b.GetData()))
		}
		if b.GetOut() {
			if b.GetBytes() > maxData {
				return tooMuch(b.GetBytes())
			}
			out += b.GetBytes()
		}
		if in > maxData || out > maxData {
			return tooMuch(max(in, out))
		}
	}
	if len(s.GetBuffers()) > maxBuffers-len(e.buffers) {
		return invalid("the session may have %d buffers", maxBuffers)
	}
	m, log, f := e.compile(s.GetImage())
	if f != nil {
		return f
	}
	var buffers []buffer
	defer func() {
		if e.gone != nil {
			return
		}
		// What runs may still use them.
		if waited := e.wait(); waited != nil {
			f = waited
			return
		}
		for _, b := range buffers {
			if freed := e.give(b); f == nil {
				f = freed
			}
		}
		if e.gone != nil {
			return
		}
		if err := e.device.Unload(m.loaded); err != nil && f == nil {
			f = e.driverFailed(leasepb.Code_SYNC_FAILED, err)
		}
	}()
	for _, wanted := range s.GetBuffers() {
		if wanted.GetBytes() == 0 {
			return invalid("a buffer of 0 bytes: it has at least 1")
		}
		b, f := e.take(wanted.GetBytes())
		if f != nil {
			return f
		}
		buffers = append(buffers, b)
		if len(wanted.GetData()) == 0 {
			continue
		}
		if err := e.device.Write(b.start, wanted.GetData()); err != nil {
			return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
		}
		e.stats.bytesWritten.Add(uint64(len(wanted.GetData())))
	}
	for _, l := range s.GetLaunches() {
		e.stats.launches.Add(1)
		f := e.start(m, l, func(handle uint64) (buffer, bool) {
			if handle == 0 || handle > uint64(len(buffers)) {
				return buffer{}, false
			}
			return buffers[handle-1], true
		})
		if f != nil {
			e.stats.launchFailures.Add(1)
			return f
		}
	}
	result := &leasepb.SubmitReply{Log: log}
	for i, wanted := range s.GetBuffers() {
		if !wanted.GetOut() {
			continue
		}
		data := make([]byte, wanted.GetBytes())
		if err := e.device.Read(data, buffers[i].start); err != nil {
			return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
		}
		e.stats.bytesRead.Add(uint64(len(data)))
		result.Buffers = append(result.Buffers, data)
	}
	reply.Result = &leasepb.Reply_Submit{Submit: result}
	return nil
}

// --- shared memory ---

// share pins memory that is mapped already.
func (e *engine) share(memory []byte) (uint64, error) {
	if err := e.device.Pin(memory); err != nil {
		if f := e.lost(err); f != nil {
			return 0, errors.New(f.GetMessage())
		}
		return 0, err
	}
	number := e.handle()
	e.memories[number] = memory
	return number, nil
}

func (e *engine) unshare(number uint64) {
	memory := e.memories[number]
	delete(e.memories, number)
	// Copies from it are done when they are answered.
	if err := e.device.Unpin(memory); err != nil {
		e.lost(err)
	}
}
