// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Limits of one session.
const (
	maxBuffers = 1 << 16
	maxModules = 1 << 10
	maxImage   = 64 << 20
	maxImages  = 256 << 20 // bytes of all modules
	maxName    = 1 << 12   // bytes of a kernel's or a variable's name
	maxData    = 16 << 20  // bytes in one request or reply
)

// engine executes requests on a device. One goroutine at a time may use it; the counters are safe for concurrent use.
type engine struct {
	device Device
	// watch limits the time of a load, until the returned function is called.
	watch func() (done func())

	last         uint64 // last handle returned
	buffers      map[uint64]buffer
	modules      map[uint64]*module
	images       uint64 // bytes of the modules' images
	sharedMemory map[uint64][]byte
	// contextFailure is the failure of every request after a fault destroyed the context.
	contextFailure *leasepb.Failure
	why            string // short form of gone
	args           arguments

	vram  uint64
	stats counters

	log   *slog.Logger // for the operator
	lease string       // id, for the log

	number   uint64 // of this broker within its session
	before   string // why the previous broker ended
	followed bool
}

type counters struct {
	allocated, peak, buffers, modules            atomic.Uint64
	requests, failures, launches, launchFailures atomic.Uint64
	syncs, syncFailures, bytesWritten, bytesRead atomic.Uint64
	freesRefused                                 atomic.Uint64
}

type buffer struct {
	start  cuda.Address
	bytes  uint64
	module uint64 // of which it is a variable; 0 if it was allocated
}

type module struct {
	loaded    cuda.Module
	image     uint64 // bytes
	kernels   map[string]*cuda.Function
	variables map[string]uint64 // handles
}

// history is the state that a client's next sync reports.
type history struct {
	failure *leasepb.Failure // first failed launch since the last sync
	kernel  string           // kernel of that launch
}

func newEngine(device Device, vram uint64) *engine {
	return &engine{
		device: device, vram: vram,
		buffers: map[uint64]buffer{}, modules: map[uint64]*module{}, sharedMemory: map[uint64][]byte{},
		watch: func() func() { return func() {} },
		log:   slog.New(slog.DiscardHandler),
	}
}

// succeed sets the broker's place in its session. Call it before the first request.
func (e *engine) succeed(config Config) {
	e.number, e.before, e.followed, e.last = config.Number, config.Before, config.Followed, firstHandle(config.Number)
	e.lease = config.Lease
	if config.Log != nil {
		e.log = config.Log
	}
}

// do executes one request and fills in its reply. A nil failure is success.
func (e *engine) do(h *history, r *leasepb.Request, reply *leasepb.Reply) {
	reply.Sequence = r.GetSequence()
	reply.Failure = e.perform(h, r, reply)
	e.stats.requests.Add(1)
	if reply.Failure != nil {
		e.stats.failures.Add(1)
		reply.Result = nil
	}
}

func (e *engine) perform(h *history, r *leasepb.Request, reply *leasepb.Reply) *leasepb.Failure {
	if e.contextFailure != nil {
		return e.contextFailure
	}
	switch o := r.GetOperation().(type) {
	case *leasepb.Request_Launch:
		f := e.launch(o.Launch)
		if f != nil && h.failure == nil {
			h.failure, h.kernel = f, o.Launch.GetKernel()
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
	case *leasepb.Request_ModuleVariable:
		handle, b, f := e.variable(o.ModuleVariable)
		reply.Result = &leasepb.Reply_ModuleVariable{ModuleVariable: &leasepb.ModuleVariableReply{Handle: handle, Address: uint64(b.start), Bytes: b.bytes}}
		return f
	case *leasepb.Request_Submit:
		return e.submit(o.Submit, reply)
	}
	return advised(invalid("the request has no operation that this broker knows"), "compare the versions of client and broker")
}

// lost returns the session's final failure if err means that the context is lost, or nil. The broker then ends, as the driver
// gives a process no other context after a kernel fault (observed on an H100).
func (e *engine) lost(err error) *leasepb.Failure {
	var result cuda.Result
	if !errors.As(err, &result) || !result.Lost() {
		return nil
	}
	e.why = fmt.Sprintf("a device fault: %v; the session's context is lost with all of its buffers and modules", err)
	if e.followed {
		e.contextFailure = goesOn(e.why)
	} else {
		e.contextFailure = advised(failed(leasepb.Code_SYNC_FAILED, "%s; the session ends", e.why), "open another session; other sessions are not affected")
		e.contextFailure.Lost = true
	}
	return e.contextFailure
}

// goesOn is the failure for clients of a broker that ends and has a successor.
func goesOn(what string) *leasepb.Failure {
	f := failed(leasepb.Code_SYNC_FAILED, "%s; the session continues under the same lease, without its buffers and modules", what)
	f.Lost = true
	return advised(f, "connect again, and allocate and load again; other sessions are not affected")
}

// notTaken counts memory that the driver failed to free: it stays allocated until the broker ends. Only the first case is
// logged.
func (e *engine) notTaken(what string, err error) {
	if e.lost(err) == nil && e.stats.freesRefused.Add(1) == 1 {
		e.log.Error("driver did not free memory: it stays charged to the session until its broker exits", "lease", e.lease, "what", what, "err", err)
	}
}

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
