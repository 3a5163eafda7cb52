// SPDX-License-Identifier: Apache-2.0

// Package hostmem charges the host memory of processes that move their own memory to a cgroup chosen by the operator.
//
// The kernel charges a page of a memfd to the process that touches it first. So a small process in that cgroup, the holder,
// creates a memfd for each process with granted host memory, and touches the granted pages. The process maps the memfd, and keeps
// no descriptor. The memfd is never reused for another process, and emptied when its process has ended.
//
// The holder outlives the enforcer, which finds it again by its socket in the run directory. If the holder dies, granted memory
// stays mapped and charged, and the next request starts another holder.
//
// The enforcer decides about grants; Keeper is its side. The holder serves only its own user, root, and never reads data of other
// processes.
package hostmem

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Step is the unit of all sizes and offsets of this package, in bytes.
const Step = ledger.HostStep

// Up rounds up to a multiple of Step.
func Up(bytes uint64) uint64 { return (bytes + Step - 1) / Step * Step }

// Process identifies a process uniquely within a boot.
type Process struct {
	PID   int
	Start uint64
}

// op is an operation of the holder.
type op uint32

const (
	opGrow  op = 1 + iota // charge the bytes `from` to `to` of the process's memfd, of `size` bytes; the answer has its descriptor
	opTrim                // release the bytes `from` to `to`
	opBytes               // report the charged bytes; of all processes for pid 0
)

// maxSize is larger than any device's memory.
const maxSize = 1 << 46

const (
	magic       = 0x31485347 // "GSH1": changes with the layout
	requestSize = 48
	replySize   = 16
)

// request is one message to the holder, on a connection of SOCK_SEQPACKET.
type request struct {
	op             op
	of             Process
	size, from, to uint64
}

func (r request) encode() []byte {
	b := make([]byte, 0, requestSize)
	b = binary.NativeEndian.AppendUint32(b, magic)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.op))
	for _, n := range []uint64{uint64(r.of.PID), r.of.Start, r.size, r.from, r.to} {
		b = binary.NativeEndian.AppendUint64(b, n)
	}
	return b
}

var errMessage = errors.New("a message of another version")

func decodeRequest(b []byte) (r request, err error) {
	if len(b) != requestSize || binary.NativeEndian.Uint32(b) != magic {
		return r, errMessage
	}
	var n [5]uint64
	for i := range n {
		n[i] = binary.NativeEndian.Uint64(b[8+8*i:])
	}
	r = request{op(binary.NativeEndian.Uint32(b[4:])), Process{int(n[0]), n[1]}, n[2], n[3], n[4]}
	const maxPID = 1 << 22
	switch {
	case n[0] > maxPID:
		return r, fmt.Errorf("pid %d", n[0])
	case r.op < opGrow || r.op > opBytes:
		return r, fmt.Errorf("operation %d", r.op)
	case r.op != opGrow && r.size != 0, r.op == opBytes && r.from|r.to != 0, r.op != opBytes && r.of.PID == 0:
		return r, errors.New("fields of another operation")
	case (r.size|r.from|r.to)%Step != 0, r.from > r.to, r.op == opGrow && r.to > r.size, r.size > maxSize, r.to > maxSize:
		return r, fmt.Errorf("%d to %d of %d bytes", r.from, r.to, r.size)
	}
	return r, nil
}

// reply is the holder's answer. A descriptor may accompany it.
type reply struct {
	failed unix.Errno // 0 on success
	bytes  uint64     // charged now
}

func (r reply) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, replySize), magic)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.failed))
	return binary.NativeEndian.AppendUint64(b, r.bytes)
}

func decodeReply(b []byte) (r reply, err error) {
	if len(b) != replySize || binary.NativeEndian.Uint32(b) != magic {
		return r, errMessage
	}
	return reply{unix.Errno(binary.NativeEndian.Uint32(b[4:])), binary.NativeEndian.Uint64(b[8:])}, nil
}
