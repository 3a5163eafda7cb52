// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"math"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

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
		return nil, "", invalid("the module has no image")
	case bytes > maxImage:
		return nil, "", invalid("an image of %d bytes: it may have %d", bytes, maxImage)
	case len(e.modules) >= maxModules:
		return nil, "", advised(invalid("the session has %d modules, which is the limit", maxModules), "unload some")
	case bytes > maxImages-e.images:
		return nil, "", advised(invalid("the images of the session's modules may have %d bytes together", maxImages), "unload some")
	}
	done := e.watch()
	loaded, log, err := e.device.Load(image)
	done()
	if err != nil {
		f := e.lost(err)
		if f == nil {
			f = advised(failed(leasepb.Code_LOAD_FAILED, "the driver does not load the module: %v", err), loadAdvice(err, log, e.device.Capability()))
			f.Log = log
		}
		return nil, "", f
	}
	killpoint.Pass("broker.loaded")
	return &module{loaded: loaded, image: bytes, kernels: map[string]*cuda.Function{}, variables: map[string]uint64{}}, log, nil
}

func (e *engine) unload(handle uint64) *leasepb.Failure {
	m, ok := e.modules[handle]
	if !ok {
		return e.noHandle("module", handle)
	}
	killpoint.Pass("broker.unloading")
	// Kernels of the module may still be running.
	err := e.device.Sync()
	if err != nil {
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	if f := e.discard(m); f != nil {
		return f
	}
	for _, variable := range m.variables {
		delete(e.buffers, variable)
	}
	delete(e.modules, handle)
	e.stats.modules.Add(^uint64(0))
	e.images -= m.image
	return nil
}

// discard unloads a module. No kernel of it may be running.
func (e *engine) discard(m *module) *leasepb.Failure {
	if err := e.device.Unload(m.loaded); err != nil {
		e.notTaken("module", err)
		return e.driverFailed(leasepb.Code_SYNC_FAILED, err)
	}
	return nil
}

func (e *engine) launch(l *leasepb.Launch) *leasepb.Failure {
	e.stats.launches.Add(1)
	f := func() *leasepb.Failure {
		m, ok := e.modules[l.GetModule()]
		if !ok {
			return e.noHandle("module", l.GetModule())
		}
		return e.start(m, l, func(handle uint64) (buffer, *leasepb.Failure) { return e.buffer(handle, 0, 0) })
	}()
	if f != nil {
		e.stats.launchFailures.Add(1)
	}
	return f
}

func (e *engine) start(m *module, l *leasepb.Launch, find func(handle uint64) (buffer, *leasepb.Failure)) *leasepb.Failure {
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
		return failed(leasepb.Code_LAUNCH_FAILED, "%d bytes of shared memory: no device has that much", shape.SharedBytes)
	}
	if f := e.args.lay(kernel, l, find); f != nil {
		return f
	}
	values, offsets := e.args.of(kernel)
	err := e.device.Launch(kernel, shape, values, offsets)
	killpoint.Pass("broker.launched")
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
		f.Advice = "a grid has at most 2147483647 × 65535 × 65535 blocks; a block has at most 1024 × 1024 × 64 threads, and the shared memory that the device allows"
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
	if f := checkName(leasepb.Code_LAUNCH_FAILED, "kernel", name); f != nil {
		return nil, f
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

func checkName(code leasepb.Code, what, name string) *leasepb.Failure {
	switch {
	case name == "" || len(name) > maxName:
		return failed(code, "a %s's name has 1 to %d bytes", what, maxName)
	case strings.IndexByte(name, 0) >= 0:
		return failed(code, "a %s's name has no zero byte", what)
	}
	return nil
}

// variable returns a module's variable as a buffer. Its handle ends with the module.
func (e *engine) variable(v *leasepb.ModuleVariable) (uint64, buffer, *leasepb.Failure) {
	m, ok := e.modules[v.GetModule()]
	if !ok {
		return 0, buffer{}, e.noHandle("module", v.GetModule())
	}
	if handle, known := m.variables[v.GetName()]; known {
		return handle, e.buffers[handle], nil
	}
	f := checkName(leasepb.Code_INVALID_REQUEST, "variable", v.GetName())
	if f == nil {
		f = e.full()
	}
	if f != nil {
		return 0, buffer{}, f
	}
	at, err := e.device.Variable(m.loaded, v.GetName())
	switch {
	case errors.Is(err, cuda.NotFound):
		return 0, buffer{}, advised(failed(leasepb.Code_NOT_FOUND, "the module has no variable %q", v.GetName()),
			"declare it extern \"C\" __constant__ or __device__ (.visible .const or .visible .global in PTX), or use its mangled name")
	case err != nil:
		return 0, buffer{}, e.driverFailed(leasepb.Code_INVALID_HANDLE, err)
	}
	handle := e.handle()
	m.variables[v.GetName()] = handle
	e.buffers[handle] = buffer{start: at.Start, bytes: at.Size, module: v.GetModule()}
	return handle, e.buffers[handle], nil
}

func (e *engine) sync(h *history) *leasepb.Failure {
	e.stats.syncs.Add(1)
	f := e.wait()
	if f == nil && h.failure != nil {
		f = advised(failed(h.failure.GetCode(), "a launch since the last sync failed, of %.200q: %s", h.kernel, h.failure.GetMessage()), h.failure.GetAdvice())
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
	killpoint.Pass("broker.synced")
	return nil
}
