// SPDX-License-Identifier: Apache-2.0

// Package hostmem has host memory of processes that move their memory themselves charged to a cgroup that the operator chose, and not to their own.
//
// The kernel charges a page of a memfd to who touches it first. So a small process, the holder, is in that cgroup: it makes one memfd for each process
// that asks the enforcer for host memory, and touches what the enforcer grants. The process maps it and keeps no descriptor. The holder outlives the
// enforcer, which finds it again by its socket in the run directory; if the holder dies, what was granted stays mapped where it is, and another one is
// started for what is asked for next. A memfd is of one process for good, and emptied once that has ended.
//
// The enforcer decides who gets how much (Keeper is its side). The holder serves nobody but its own user, root, reads nothing that another process wrote,
// and never touches a byte of what it holds.
package hostmem

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
)

// Step is what all sizes and offsets here are multiples of.
const Step = ledger.HostStep

// Up rounds up to whole steps.
func Up(bytes uint64) uint64 { return (bytes + Step - 1) / Step * Step }

// Process tells one process from all others of this boot.
type Process struct {
	PID   int
	Start uint64
}

// op is what the enforcer asks of the holder.
type op uint32

const (
	opGrow  op = 1 + iota // have `from` to `to` of the process's memfd, of `size` bytes, charged; answered with its descriptor
	opTrim                // give back `from` to `to` of it
	opBytes               // say how much of it is charged; of all, for pid 0
)

// maxSize is more than a device has.
const maxSize = 1 << 46

const (
	magic       = 0x31485347 // "GSH1": another layout has another number
	requestSize = 48
	replySize   = 16
)

// request is one message to the holder, in a connection of SOCK_SEQPACKET.
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

// reply is the holder's answer; the descriptor comes with it.
type reply struct {
	failed unix.Errno // 0: it did what it was asked to
	bytes  uint64     // that are charged now
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
