// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

func (e *engine) submit(s *leasepb.Submit, reply *leasepb.Reply) (f *leasepb.Failure) {
	var in, out uint64
	for _, b := range s.GetBuffers() {
		in += uint64(len(b.GetData()))
		if uint64(len(b.GetData())) > b.GetBytes() {
			return invalid("a buffer of %d bytes has %d bytes of initial data", b.GetBytes(), len(b.GetData()))
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
		if e.contextFailure != nil {
			return
		}
		// Launched kernels may still use the buffers.
		if waited := e.wait(); waited != nil {
			f = waited
			return
		}
		for _, b := range buffers {
			if freed := e.give(b); f == nil {
				f = freed
			}
		}
		if e.contextFailure != nil {
			return
		}
		if discarded := e.discard(m); f == nil {
			f = discarded
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
		f := e.start(m, l, func(handle uint64) (buffer, *leasepb.Failure) {
			if handle == 0 || handle > uint64(len(buffers)) {
				return buffer{}, noHandle("buffer", handle)
			}
			return buffers[handle-1], nil
		})
		if f != nil {
			e.stats.launchFailures.Add(1)
			return f
		}
	}
	killpoint.Pass("broker.submitted")
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
