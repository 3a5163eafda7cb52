// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

const (
	maxArguments  = 1 << 10
	maxParameters = 32764 // bytes: CUDA's limit
)

// arguments holds the arguments of one launch, and is reused for the next. All later bytes, up to the size of any kernel's
// parameters, are zero: a driver that cannot describe a kernel may read past the arguments.
type arguments struct {
	values  []byte // the launch's arguments, then zeros
	used    int    // bytes of values in use
	offsets []uint32
	count   int
}

func (a *arguments) reset() {
	if a.values == nil {
		a.values, a.offsets = make([]byte, 2*maxParameters), make([]uint32, maxArguments)
		for i := range a.offsets {
			a.offsets[i] = maxParameters
		}
	}
	clear(a.values[:a.used])
	for i := range a.count {
		a.offsets[i] = maxParameters
	}
	a.used, a.count = 0, 0
}

func (a *arguments) lay(kernel *cuda.Function, l *leasepb.Launch, find func(handle uint64) (buffer, *leasepb.Failure)) *leasepb.Failure {
	given := l.GetArguments()
	if kernel.Described && len(given) != len(kernel.Parameters) {
		return failed(leasepb.Code_LAUNCH_FAILED, "%d arguments: %s has %d parameters", len(given), l.GetKernel(), len(kernel.Parameters))
	}
	if len(given) > maxArguments {
		return failed(leasepb.Code_LAUNCH_FAILED, "%d arguments: a launch may have %d", len(given), maxArguments)
	}
	a.reset()
	for i, argument := range given {
		raw := argument.GetRaw()
		switch v := argument.GetValue().(type) {
		case *leasepb.Argument_Raw:
		case *leasepb.Argument_Pointer:
			b, f := find(v.Pointer.GetHandle())
			if f != nil {
				return f
			}
			if f := b.checkRange(v.Pointer.GetOffset(), 0); f != nil {
				return f
			}
			raw = binary.LittleEndian.AppendUint64(make([]byte, 0, 8), uint64(b.start)+v.Pointer.GetOffset())
		default:
			return failed(leasepb.Code_LAUNCH_FAILED, "argument %d has no value", i)
		}
		if len(raw) > maxParameters-a.used {
			return failed(leasepb.Code_LAUNCH_FAILED, "the arguments have more than %d bytes", maxParameters)
		}
		if kernel.Described && uint64(len(raw)) != uint64(kernel.Parameters[i].Size) {
			return failed(leasepb.Code_LAUNCH_FAILED, "argument %d has %d bytes: that parameter of %s has %d", i, len(raw), l.GetKernel(), kernel.Parameters[i].Size)
		}
		a.offsets[i] = uint32(a.used)
		a.count++
		a.used += copy(a.values[a.used:], raw)
	}
	return nil
}

func (a *arguments) of(kernel *cuda.Function) ([]byte, []uint32) {
	if kernel.Described {
		return a.values, a.offsets[:a.count]
	}
	return a.values, a.offsets
}
