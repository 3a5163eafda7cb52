// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const testVRAM = 1 << 20

// bench is an engine on a fake device, with one client.
type bench struct {
	*testing.T
	device *fakeDevice
	engine *engine
	client history
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, device: newFakeDevice()}
	b.engine = newEngine(b.device, testVRAM)
	return b
}

func (b *bench) ask(operation any) (leasepb.Code, *leasepb.Reply) {
	b.Helper()
	return b.askAs(&b.client, operation)
}

func (b *bench) askAs(h *history, operation any) (leasepb.Code, *leasepb.Reply) {
	b.Helper()
	reply := &leasepb.Reply{}
	b.engine.do(h, request(operation), reply)
	if f := reply.GetFailure(); f != nil && f.GetMessage() == "" {
		b.Errorf("%v: %v has no message", operation, f.GetCode())
	}
	return reply.GetFailure().GetCode(), reply
}

func (b *bench) must(operation any) *leasepb.Reply {
	b.Helper()
	code, reply := b.ask(operation)
	if code != 0 {
		b.Fatalf("%v: %v", operation, reply.GetFailure())
	}
	return reply
}

func (b *bench) refuses(code leasepb.Code, operation any) *leasepb.Failure {
	b.Helper()
	got, reply := b.ask(operation)
	if got != code {
		b.Errorf("%v: %v %v, not %v", operation, got, reply.GetFailure(), code)
	}
	return reply.GetFailure()
}

func (b *bench) alloc(bytes uint64) uint64 {
	b.Helper()
	return b.must(&leasepb.MemAlloc{Bytes: bytes}).GetMemAlloc().GetHandle()
}

func (b *bench) load() uint64 {
	b.Helper()
	return b.must(&leasepb.ModuleLoad{Image: []byte("ptx")}).GetModuleLoad().GetModule()
}

func (b *bench) read(handle, offset, bytes uint64) []byte {
	b.Helper()
	return b.must(readInto(handle, offset, bytes)).GetMemRead().GetData()
}

func readInto(handle, offset, bytes uint64) *leasepb.MemRead {
	return &leasepb.MemRead{Handle: handle, Offset: offset, Destination: &leasepb.MemRead_Bytes{Bytes: bytes}}
}

func writeFrom(handle, offset uint64, data []byte) *leasepb.MemWrite {
	return &leasepb.MemWrite{Handle: handle, Offset: offset, Source: &leasepb.MemWrite_Data{Data: data}}
}

func request(operation any) *leasepb.Request {
	r := &leasepb.Request{}
	m := operation.(proto.Message).ProtoReflect()
	fields := r.ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	for i := range fields.Len() {
		if fields.Get(i).Message() == m.Descriptor() {
			r.ProtoReflect().Set(fields.Get(i), protoreflect.ValueOfMessage(m))
		}
	}
	return r
}

func TestBuffersAreReadAsTheyWereWritten(t *testing.T) {
	b := newBench(t)
	first, second := b.alloc(100), b.alloc(50)
	if data := b.read(first, 0, 100); !bytes.Equal(data, make([]byte, 100)) {
		t.Errorf("a new buffer has %v", data)
	}
	b.must(writeFrom(first, 10, []byte("slice")))
	b.must(&leasepb.MemCopy{To: second, ToOffset: 45, From: first, FromOffset: 10, Bytes: 5})
	b.must(&leasepb.MemSet{Handle: second, Offset: 0, Bytes: 45, Value: 255})
	if data := b.read(second, 44, 6); string(data) != "\xffslice" {
		t.Errorf("%q", data)
	}
	b.must(&leasepb.MemFree{Handle: first})
	b.refuses(leasepb.Code_INVALID_HANDLE, readInto(first, 0, 1))
	if third := b.alloc(100); third == first {
		t.Error("a handle is used again")
	}
}

func TestRefusedAllocationReportsTheLeasesFigures(t *testing.T) {
	b := newBench(t)
	b.alloc(1000)
	for _, bytes := range []uint64{testVRAM - 999, testVRAM + 1, math.MaxInt64, math.MaxUint64 - 5, math.MaxUint64} {
		f := b.refuses(leasepb.Code_ALLOC_FAILED, &leasepb.MemAlloc{Bytes: bytes})
		if f.Requested == nil || f.Limit == nil || f.Current == nil || *f.Requested != bytes || *f.Limit != testVRAM || *f.Current != 1000 {
			t.Errorf("%d bytes: %v", bytes, f)
		}
	}
	b.device.room = 100
	if f := b.refuses(leasepb.Code_ALLOC_FAILED, &leasepb.MemAlloc{Bytes: 200}); f.Requested == nil || f.GetCurrent() != 1000 {
		t.Errorf("what the driver refuses: %v", f)
	}
	b.device.room = fakeMemory
	b.alloc(testVRAM - 1000)
	if f := b.refuses(leasepb.Code_ALLOC_FAILED, &leasepb.MemAlloc{Bytes: 1}); f.Current == nil || *f.Current != testVRAM {
		t.Errorf("a full lease: %v", f)
	}
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.MemAlloc{})
}

func TestRangesThatAreNotWithinABufferAreRefused(t *testing.T) {
	b := newBench(t)
	h, other := b.alloc(100), b.alloc(100)
	for _, r := range []struct{ offset, bytes uint64 }{
		{0, 101}, {100, 1}, {101, 0}, {99, 2}, {math.MaxUint64, 1}, {math.MaxUint64, 2}, {1, math.MaxUint64}, {math.MaxUint64 - 3, 100}, {50, math.MaxUint64 - 40},
	} {
		b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemSet{Handle: h, Offset: r.offset, Bytes: r.bytes})
		b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemCopy{To: h, ToOffset: r.offset, From: other, Bytes: r.bytes})
		b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemCopy{From: h, FromOffset: r.offset, To: other, Bytes: r.bytes})
		if r.bytes <= maxData {
			b.refuses(leasepb.Code_INVALID_HANDLE, readInto(h, r.offset, r.bytes))
			b.refuses(leasepb.Code_INVALID_HANDLE, writeFrom(h, r.offset, make([]byte, r.bytes)))
		}
	}
	b.refuses(leasepb.Code_INVALID_REQUEST, readInto(h, 0, maxData+1))
	b.refuses(leasepb.Code_INVALID_REQUEST, writeFrom(h, 0, make([]byte, maxData+1)))
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.MemSet{Handle: h, Bytes: 1, Value: 256})
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.MemCopy{To: h, ToOffset: 5, From: h, Bytes: 10})
	b.must(&leasepb.MemCopy{To: h, ToOffset: 10, From: h, Bytes: 10})
	for _, nothing := range []any{readInto(h, 100, 0), writeFrom(h, 100, nil), &leasepb.MemSet{Handle: h, Offset: 100}, &leasepb.MemCopy{To: h, From: h}} {
		b.must(nothing)
	}
}

func TestALaunchIsCheckedBeforeTheDriverSeesIt(t *testing.T) {
	b := newBench(t)
	h, m := b.alloc(100), b.load()
	pointer := func(handle, offset uint64) *leasepb.Argument {
		return &leasepb.Argument{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: handle, Offset: offset}}}
	}
	raw := func(size int) *leasepb.Argument {
		return &leasepb.Argument{Value: &leasepb.Argument_Raw{Raw: bytes.Repeat([]byte{7}, size)}}
	}
	launch := func(kernel string, arguments ...*leasepb.Argument) *leasepb.Launch {
		return &leasepb.Launch{Module: m, Kernel: kernel, Grid: &leasepb.Dim{X: 3}, Block: &leasepb.Dim{X: 32, Y: 2}, Arguments: arguments}
	}
	b.must(launch("pointer", pointer(h, 40), raw(4)))
	got := b.device.ran[0]
	if got.shape.Grid != [3]uint32{3, 1, 1} || got.shape.Block != [3]uint32{32, 2, 1} || len(got.offsets) != 2 || got.offsets[1] != 8 {
		t.Errorf("launched as %+v", got)
	}
	for start := range b.device.memory {
		if want := uint64(start) + 40; le(got.values[:8]) != want || string(got.values[8:12]) != "\x07\x07\x07\x07" {
			t.Errorf("arguments %x, not %#x and 7s", got.values, want)
		}
	}
	b.must(&leasepb.Sync{})
	for _, wrong := range []*leasepb.Launch{
		launch("pointer"), launch("pointer", pointer(h, 0)), launch("pointer", pointer(h, 0), raw(4), raw(4)),
		launch("pointer", pointer(h, 0), raw(8)), launch("pointer", raw(4), raw(4)), launch("pointer", pointer(h, 0), &leasepb.Argument{}),
		launch("none"), launch(""), launch("a\x00b"), launch(strings.Repeat("k", maxName+1)),
		launch("unknown", make([]*leasepb.Argument, maxArguments+1)...), launch("unknown", raw(maxParameters+1)), launch("big"),
		{Module: m, Kernel: "nothing", Block: &leasepb.Dim{X: 1025}},
		{Module: m, Kernel: "nothing", Block: &leasepb.Dim{X: 1 << 16, Y: 1 << 16, Z: 1}},
		{Module: m, Kernel: "nothing", Block: &leasepb.Dim{X: math.MaxUint32, Y: math.MaxUint32, Z: math.MaxUint32}},
		{Module: m, Kernel: "nothing", SharedBytes: 1 << 31},
	} {
		b.refuses(leasepb.Code_LAUNCH_FAILED, wrong)
		if f := b.refuses(leasepb.Code_LAUNCH_FAILED, &leasepb.Sync{}); !strings.Contains(f.GetMessage(), "a launch since the last sync failed") {
			t.Errorf("the sync says %q", f.GetMessage())
		}
		b.must(&leasepb.Sync{})
	}
	for _, wrong := range []*leasepb.Launch{
		launch("pointer", pointer(99, 0), raw(4)), launch("pointer", pointer(h, 101), raw(4)), launch("pointer", pointer(h, math.MaxUint64), raw(4)),
		{Module: 99, Kernel: "nothing"}, {Module: h, Kernel: "nothing"},
	} {
		b.refuses(leasepb.Code_INVALID_HANDLE, wrong)
	}
	other := history{}
	if code, _ := b.askAs(&other, &leasepb.Sync{}); code != 0 {
		t.Errorf("another client's sync says %v", code)
	}
	// A driver that cannot describe the parameters must read only the request's bytes, or zeros.
	b.device.ran = nil
	b.must(launch("unknown", raw(300), raw(200)))
	b.must(launch("unknown", raw(3)))
	got = b.device.ran[1]
	if len(got.offsets) != maxArguments || len(got.values) < int(got.offsets[maxArguments-1])+maxParameters || string(got.values[:3]) != "\a\a\a" {
		t.Errorf("%d offsets, %d bytes", len(got.offsets), len(got.values))
	}
	for i, offset := range got.offsets[1:] {
		if value := got.values[offset:][:maxParameters]; !bytes.Equal(value, make([]byte, maxParameters)) || !bytes.Equal(got.values[3:maxParameters], make([]byte, maxParameters-3)) {
			t.Fatalf("parameter %d, which was not given, is not zero", i+1)
		}
	}
}

func le(data []byte) (value uint64) {
	for i, b := range data {
		value |= uint64(b) << (8 * i)
	}
	return value
}

func TestFaultInAnyCallEndsTheSession(t *testing.T) {
	for name, found := range map[string]func(b *bench) any{
		"sync":   func(*bench) any { return &leasepb.Sync{} },
		"read":   func(b *bench) any { return readInto(b.alloc(1), 0, 1) },
		"write":  func(b *bench) any { return writeFrom(b.alloc(1), 0, []byte{1}) },
		"set":    func(b *bench) any { return &leasepb.MemSet{Handle: b.alloc(1), Bytes: 1} },
		"copy":   func(b *bench) any { h := b.alloc(2); return &leasepb.MemCopy{To: h, From: h, FromOffset: 1, Bytes: 1} },
		"alloc":  func(*bench) any { return &leasepb.MemAlloc{Bytes: 1} },
		"free":   func(b *bench) any { return &leasepb.MemFree{Handle: b.alloc(1)} },
		"load":   func(*bench) any { return &leasepb.ModuleLoad{Image: []byte("ptx")} },
		"unload": func(b *bench) any { return &leasepb.ModuleUnload{Module: b.load()} },
		"launch": func(b *bench) any { return &leasepb.Launch{Module: b.load(), Kernel: "nothing"} },
		"submit": func(*bench) any { return &leasepb.Submit{Image: []byte("ptx")} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			kept, operation := b.alloc(100), found(b)
			b.device.fault = failing("a kernel", 700)
			if f := b.refuses(leasepb.Code_SYNC_FAILED, operation); !strings.Contains(f.GetMessage(), "lost") || f.GetAdvice() == "" {
				t.Errorf("%v", f)
			}
			b.refuses(leasepb.Code_SYNC_FAILED, readInto(kept, 0, 1))
			if code, _ := b.askAs(&history{}, &leasepb.Sync{}); code != leasepb.Code_SYNC_FAILED {
				t.Errorf("another client learns %v", code)
			}
		})
	}
}

func TestMemoryThatTheDriverDoesNotReleaseStaysCharged(t *testing.T) {
	for function, operation := range map[string]func(b *bench) any{
		"Free":   func(b *bench) any { return &leasepb.MemFree{Handle: b.alloc(100)} },
		"Sync":   func(b *bench) any { return &leasepb.ModuleUnload{Module: b.load()} },
		"Unload": func(b *bench) any { return &leasepb.ModuleUnload{Module: b.load()} },
	} {
		t.Run(function, func(t *testing.T) {
			b := newBench(t)
			asked := operation(b)
			allocated, images := b.engine.stats.allocated.Load(), b.engine.images
			b.device.fails[function] = failing("the driver", 1)
			if code, _ := b.ask(asked); code == 0 {
				t.Fatal("it is given back, says the session")
			}
			if b.engine.stats.allocated.Load() != allocated || b.engine.images != images {
				t.Errorf("the session counts %d bytes and %d of images, had %d and %d", b.engine.stats.allocated.Load(), b.engine.images, allocated, images)
			}
			delete(b.device.fails, function)
			b.must(asked)
			if b.engine.stats.allocated.Load() != 0 || b.engine.images != 0 || len(b.device.memory) != 0 || b.device.loaded != 0 {
				t.Errorf("the session has %d bytes and %d of images, the device %d buffers and %d modules",
					b.engine.stats.allocated.Load(), b.engine.images, len(b.device.memory), b.device.loaded)
			}
		})
	}
}

func TestFailedFreesAreLoggedOnce(t *testing.T) {
	for function, operation := range map[string]func(b *bench) any{
		"Free":   func(b *bench) any { return &leasepb.MemFree{Handle: b.alloc(100)} },
		"Unload": func(b *bench) any { return &leasepb.ModuleUnload{Module: b.load()} },
		"submit": func(b *bench) any {
			b.device.fails["Unload"] = failing("the driver", 1)
			return &leasepb.Submit{Image: []byte("ptx")}
		},
	} {
		t.Run(function, func(t *testing.T) {
			var said strings.Builder
			b := newBench(t)
			b.engine.succeed(Config{Lease: "lease-1", Log: slog.New(slog.NewTextHandler(&said, nil))})
			asked := operation(b)
			b.device.fails[function] = failing("the driver", 1)
			for range 3 {
				b.ask(asked)
			}
			if got := b.engine.stats.freesRefused.Load(); got != 3 {
				t.Errorf("%d refused frees are counted", got)
			}
			if got := said.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "lease=lease-1") || !strings.Contains(got, "the driver") {
				t.Errorf("logged for the operator: %q", got)
			}
		})
	}
	t.Run("a fault that destroyed the context is reported separately", func(t *testing.T) {
		b := newBench(t)
		asked := &leasepb.MemFree{Handle: b.alloc(100)}
		b.device.fails["Free"] = failing("the driver", 700)
		b.ask(asked)
		if got := b.engine.stats.freesRefused.Load(); got != 0 || b.engine.contextFailure == nil {
			t.Errorf("%d refused frees are counted; gone: %v", got, b.engine.contextFailure)
		}
	})
}

func TestModulesAreBoundedAndTheirLogComesBack(t *testing.T) {
	b := newBench(t)
	reply := b.must(&leasepb.ModuleLoad{Image: []byte("ptx")})
	if reply.GetModuleLoad().GetLog() != "fine" {
		t.Errorf("%v", reply)
	}
	f := b.refuses(leasepb.Code_LOAD_FAILED, &leasepb.ModuleLoad{Image: []byte("garbage")})
	if f.GetLog() == "" || f.GetAdvice() == "" {
		t.Errorf("%v", f)
	}
	b.device.fails["Load"] = failing("cuModuleLoadDataEx", cuda.NoBinary)
	if f := b.refuses(leasepb.Code_LOAD_FAILED, &leasepb.ModuleLoad{Image: []byte("cubin")}); !strings.Contains(f.GetAdvice(), "recompile without -arch") {
		t.Errorf("%v", f)
	}
	delete(b.device.fails, "Load")
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.ModuleLoad{})
	large := append([]byte("ptx"), make([]byte, maxImage)...)
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.ModuleLoad{Image: large})
	for range maxImages / maxImage {
		code, _ := b.ask(&leasepb.ModuleLoad{Image: large[:maxImage-1]})
		if code != 0 {
			t.Fatal(code)
		}
	}
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.ModuleLoad{Image: large[:1000]})
	b.must(&leasepb.ModuleUnload{Module: 1})
	b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.ModuleUnload{Module: 1})
}

func TestAVariableOfAModuleIsABufferUntilTheModuleIsUnloaded(t *testing.T) {
	b := newBench(t)
	m, own := b.load(), b.alloc(100)
	of := func(name string) *leasepb.ModuleVariable { return &leasepb.ModuleVariable{Module: m, Name: name} }
	v := b.must(of("factor")).GetModuleVariable()
	if again := b.must(of("factor")).GetModuleVariable(); v.GetBytes() != 16 || v.GetAddress() == 0 || again.GetHandle() != v.GetHandle() || len(b.engine.buffers) != 2 {
		t.Errorf("the variable is %v, then %v; %d buffers", v, again, len(b.engine.buffers))
	}
	b.must(writeFrom(v.GetHandle(), 4, []byte("abc")))
	b.must(&leasepb.MemCopy{To: own, From: v.GetHandle(), Bytes: 16})
	if got := b.read(own, 0, 8); string(got) != "\x00\x00\x00\x00abc\x00" {
		t.Errorf("%q", got)
	}
	b.must(&leasepb.Launch{Module: m, Kernel: "pointer", Arguments: []*leasepb.Argument{
		{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: v.GetHandle(), Offset: 4}}}, {Value: &leasepb.Argument_Raw{Raw: make([]byte, 4)}},
	}})
	b.refuses(leasepb.Code_INVALID_HANDLE, readInto(v.GetHandle(), 10, 7))
	b.refuses(leasepb.Code_INVALID_REQUEST, &leasepb.MemFree{Handle: v.GetHandle()})
	if f := b.refuses(leasepb.Code_NOT_FOUND, of("other")); f.GetAdvice() == "" {
		t.Errorf("%v", f)
	}
	for _, name := range []string{"", "a\x00b", strings.Repeat("v", maxName+1)} {
		b.refuses(leasepb.Code_INVALID_REQUEST, of(name))
	}
	b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.ModuleVariable{Module: own, Name: "factor"})
	if s := &b.engine.stats; s.buffers.Load() != 1 || s.allocated.Load() != 100 {
		t.Errorf("%d buffers with %d bytes are counted", s.buffers.Load(), s.allocated.Load())
	}
	b.must(&leasepb.ModuleUnload{Module: m})
	b.refuses(leasepb.Code_INVALID_HANDLE, readInto(v.GetHandle(), 0, 1))
	m = b.load()
	b.device.fault = failing("cuModuleGetGlobal_v2", 700)
	b.refuses(leasepb.Code_SYNC_FAILED, of("factor"))
}

func TestThePeakIsTheMostThatWasAllocated(t *testing.T) {
	b := newBench(t)
	for _, size := range []uint64{100, 700} {
		b.must(&leasepb.MemFree{Handle: b.alloc(size)})
	}
	b.alloc(10)
	b.must(&leasepb.Submit{Image: []byte("ptx"), Buffers: []*leasepb.Submit_Buffer{{Bytes: 500}, {Bytes: 300}}})
	b.refuses(leasepb.Code_ALLOC_FAILED, &leasepb.MemAlloc{Bytes: testVRAM})
	if s := &b.engine.stats; s.peak.Load() != 810 || s.allocated.Load() != 10 {
		t.Errorf("the peak is %d, but %d bytes are allocated", s.peak.Load(), s.allocated.Load())
	}
}

func TestASubmissionLeavesNothing(t *testing.T) {
	b := newBench(t)
	argument := func(handle uint64) *leasepb.Argument {
		return &leasepb.Argument{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: handle}}}
	}
	number := &leasepb.Argument{Value: &leasepb.Argument_Raw{Raw: make([]byte, 4)}}
	submit := func(kernel string, handle uint64, buffers ...*leasepb.Submit_Buffer) *leasepb.Submit {
		return &leasepb.Submit{Image: []byte("ptx"), Buffers: buffers, Launches: []*leasepb.Launch{{Kernel: kernel, Arguments: []*leasepb.Argument{argument(handle), number}}}}
	}
	reply := b.must(submit("pointer", 2, &leasepb.Submit_Buffer{Bytes: 10}, &leasepb.Submit_Buffer{Bytes: 6, Data: []byte("abc"), Out: true}))
	if got := reply.GetSubmit(); len(got.GetBuffers()) != 1 || string(got.GetBuffers()[0]) != "abc\x00\x00\x00" || got.GetLog() != "fine" {
		t.Errorf("%v", reply)
	}
	b.alloc(1000)
	for code, wrong := range map[leasepb.Code][]*leasepb.Submit{
		leasepb.Code_LOAD_FAILED:    {{Image: []byte("garbage")}},
		leasepb.Code_ALLOC_FAILED:   {submit("pointer", 1, &leasepb.Submit_Buffer{Bytes: testVRAM}), submit("pointer", 1, &leasepb.Submit_Buffer{Bytes: 1}, &leasepb.Submit_Buffer{Bytes: math.MaxUint64})},
		leasepb.Code_INVALID_HANDLE: {submit("pointer", 0, &leasepb.Submit_Buffer{Bytes: 1}), submit("pointer", 2, &leasepb.Submit_Buffer{Bytes: 1}), submit("pointer", math.MaxUint64)},
		leasepb.Code_LAUNCH_FAILED:  {submit("none", 1, &leasepb.Submit_Buffer{Bytes: 1})},
		leasepb.Code_INVALID_REQUEST: {
			{}, submit("pointer", 1, &leasepb.Submit_Buffer{}), submit("pointer", 1, &leasepb.Submit_Buffer{Bytes: 1, Data: []byte("ab")}),
			submit("pointer", 1, &leasepb.Submit_Buffer{Bytes: math.MaxUint64, Out: true}),
			submit("pointer", 1, &leasepb.Submit_Buffer{Bytes: maxData, Out: true}, &leasepb.Submit_Buffer{Bytes: maxData, Out: true}),
		},
	} {
		for _, s := range wrong {
			b.refuses(code, s)
			if len(b.device.memory) != 1 || b.device.loaded != 0 || b.engine.stats.allocated.Load() != 1000 {
				t.Fatalf("%v left %d buffers and %d modules", s, len(b.device.memory), b.device.loaded)
			}
		}
	}
}

func TestSharedMemoryIsReadAndWrittenWithinItsBounds(t *testing.T) {
	b := newBench(t)
	memory := make([]byte, 4096)
	number, err := b.engine.share(memory)
	if err != nil {
		t.Fatal(err)
	}
	h := b.alloc(100)
	part := func(offset, bytes uint64) *leasepb.Range {
		return &leasepb.Range{Memory: number, Offset: offset, Bytes: bytes}
	}
	copy(memory[7:], "shared")
	b.must(&leasepb.MemWrite{Handle: h, Offset: 3, Source: &leasepb.MemWrite_Shared{Shared: part(7, 6)}})
	b.must(&leasepb.MemRead{Handle: h, Offset: 3, Destination: &leasepb.MemRead_Shared{Shared: part(4090, 6)}})
	if string(memory[4090:]) != "shared" {
		t.Errorf("%q", memory[4090:])
	}
	for _, wrong := range []*leasepb.Range{part(4090, 7), part(math.MaxUint64, 2), part(5000, 0), {Memory: h, Bytes: 1}, {}} {
		b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemWrite{Handle: h, Source: &leasepb.MemWrite_Shared{Shared: wrong}})
		b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemRead{Handle: h, Destination: &leasepb.MemRead_Shared{Shared: wrong}})
	}
	b.engine.unshare(number)
	b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemWrite{Handle: h, Source: &leasepb.MemWrite_Shared{Shared: part(0, 1)}})
}

// FuzzRequests executes arbitrary requests. The fake device detects invalid operations.
func FuzzRequests(f *testing.F) {
	add := func(operations ...any) {
		message := &leasepb.Requests{}
		for _, o := range operations {
			message.Requests = append(message.Requests, request(o))
		}
		data, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	pointer := []*leasepb.Argument{
		{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: 1, Offset: 3}}}, {Value: &leasepb.Argument_Raw{Raw: make([]byte, 4)}},
	}
	add(&leasepb.MemAlloc{Bytes: 1000}, writeFrom(1, 5, []byte("abc")), readInto(1, 0, 1000), &leasepb.MemSet{Handle: 1, Offset: 10, Bytes: 20, Value: 9},
		&leasepb.MemCopy{To: 1, From: 1, FromOffset: 500, Bytes: 500}, &leasepb.MemFree{Handle: 1})
	add(&leasepb.MemAlloc{Bytes: 1000}, &leasepb.ModuleLoad{Image: []byte("ptx")}, &leasepb.Launch{Module: 2, Kernel: "pointer", Arguments: pointer},
		&leasepb.Launch{Module: 2, Kernel: "unknown", Arguments: pointer}, &leasepb.Launch{Module: 2, Kernel: "fault"}, &leasepb.Sync{}, &leasepb.ModuleUnload{Module: 2})
	add(&leasepb.ModuleLoad{Image: []byte("ptx")}, &leasepb.ModuleVariable{Module: 1, Name: "factor"}, writeFrom(2, 5, []byte("abc")), &leasepb.MemFree{Handle: 2},
		&leasepb.ModuleVariable{Module: 1, Name: "none"}, &leasepb.ModuleUnload{Module: 1}, readInto(2, 0, 16))
	add(&leasepb.Submit{Image: []byte("ptx"), Buffers: []*leasepb.Submit_Buffer{{Bytes: 10, Data: []byte("abc"), Out: true}},
		Launches: []*leasepb.Launch{{Kernel: "pointer", Arguments: pointer}}}, &leasepb.Sync{})
	f.Fuzz(func(t *testing.T, data []byte) {
		message := &leasepb.Requests{}
		if proto.Unmarshal(data, message) != nil {
			return
		}
		for i, r := range message.GetRequests() {
			r.Sequence = uint64(i)
		}
		device := newFakeDevice()
		e := newEngine(device, testVRAM)
		h := history{}
		broker := &Broker{engine: e, ended: make(chan struct{})}
		asked, answered := message.GetRequests(), 0
		for rest := asked; len(rest) > 0; {
			replies, left, _, err := broker.carryOut(&h, message, rest)
			if err != nil || len(left) >= len(rest) {
				t.Fatalf("%d requests are left of %d: %v", len(left), len(rest), err)
			}
			rest = left
			for _, reply := range replies {
				for ; asked[answered].GetSequence() != reply.GetSequence(); answered++ {
					if !message.GetQuiet() || !isLaunch(asked[answered]) {
						t.Fatalf("%v is not answered", asked[answered])
					}
				}
				if answered++; reply.GetFailure() != nil && reply.GetResult() != nil {
					t.Fatalf("%v is answered with %v", asked[answered-1], reply)
				}
			}
		}
		for ; answered < len(asked) && message.GetQuiet() && !message.GetAnswerLast() && isLaunch(asked[answered]); answered++ {
		}
		if answered != len(asked) {
			t.Fatalf("the last of %d requests that is answered is number %d", len(asked), answered)
		}
		if e.contextFailure != nil {
			return // the context, and all memory, is lost
		}
		var held uint64
		buffers := 0
		for _, b := range e.buffers {
			if b.module == 0 {
				held, buffers = held+b.bytes, buffers+1
			}
		}
		if held != e.stats.allocated.Load() || held > testVRAM || fakeMemory-device.room != held || len(device.memory) != buffers {
			t.Fatalf("the session has %d bytes in %d buffers, says %d, and the device gave %d in %d",
				held, buffers, e.stats.allocated.Load(), fakeMemory-device.room, len(device.memory))
		}
		if device.loaded != len(e.modules) || e.stats.modules.Load() != uint64(len(e.modules)) || e.stats.buffers.Load() != uint64(buffers) {
			t.Fatalf("%d modules are loaded, the session has %d", device.loaded, len(e.modules))
		}
	})
}

func TestHandlesOfAFormerBrokerAreInvalid(t *testing.T) {
	first := newBench(t)
	old := first.must(&leasepb.MemAlloc{Bytes: 8}).GetMemAlloc().GetHandle()
	module := first.must(&leasepb.ModuleLoad{Image: []byte("ptx")}).GetModuleLoad().GetModule()
	b := newBench(t)
	b.engine.succeed(Config{Number: 1, Before: "a device fault", Followed: true})
	for range 3 {
		b.must(&leasepb.MemAlloc{Bytes: 8})
	}
	mine := b.must(&leasepb.ModuleLoad{Image: []byte("ptx")}).GetModuleLoad().GetModule()
	for name, operation := range map[string]any{
		"buffer":                     readInto(old, 0, 1),
		"module":                     &leasepb.ModuleUnload{Module: module},
		"module of a launch":         &leasepb.Launch{Module: module, Kernel: "nothing"},
		"buffer as an argument":      &leasepb.Launch{Module: mine, Kernel: "unknown", Arguments: []*leasepb.Argument{{Value: &leasepb.Argument_Pointer{Pointer: &leasepb.Pointer{Handle: old}}}}},
		"shared memory":              &leasepb.MemWrite{Handle: mine, Source: &leasepb.MemWrite_Shared{Shared: &leasepb.Range{Memory: 1, Bytes: 1}}},
		"buffer, and it is freed":    &leasepb.MemFree{Handle: old},
		"buffer, and it is filled":   &leasepb.MemSet{Handle: old, Bytes: 1},
		"buffer that is copied from": &leasepb.MemCopy{To: old, From: old, Bytes: 1},
	} {
		if f := b.refuses(leasepb.Code_INVALID_HANDLE, operation); !strings.Contains(f.GetMessage(), "former broker: a device fault") || f.GetAdvice() == "" {
			t.Errorf("%s: %v", name, f)
		}
	}
	if f := b.refuses(leasepb.Code_INVALID_HANDLE, &leasepb.MemFree{}); !strings.Contains(f.GetMessage(), "never existed") {
		t.Errorf("handle 0: %v", f)
	}
	b.device.fault = failing("a kernel", 700)
	if f := b.refuses(leasepb.Code_SYNC_FAILED, &leasepb.Sync{}); !strings.Contains(f.GetMessage(), "continues under the same lease") || !strings.Contains(f.GetAdvice(), "connect again") {
		t.Errorf("%v", f)
	}
}
