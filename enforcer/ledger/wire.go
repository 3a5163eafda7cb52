// SPDX-License-Identifier: Apache-2.0

package ledger

/*
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// MessageSize is the size of a request and of a reply in the attach protocol.
const MessageSize = int(C.sizeof_struct_attach_request)

// Op is the operation of a request.
type Op uint16

// The operations of attach.h.
const (
	OpAttach Op = C.ATTACH_OP_ATTACH
	OpDevice Op = C.ATTACH_OP_DEVICE
	OpTruth  Op = C.ATTACH_OP_TRUTH
	OpHost   Op = C.ATTACH_OP_HOST
)

// Host memory is granted in multiples of HostStep, at most HostPart at a time.
const (
	HostStep = C.ATTACH_HOST_STEP
	HostPart = C.ATTACH_HOST_PART
)

// Status is the status of a reply. Each value but StatusOK is an error.
type Status uint16

// The statuses of attach.h.
const (
	StatusOK        Status = C.ATTACH_OK
	StatusNotMember Status = C.ATTACH_NOT_MEMBER
	StatusFull      Status = C.ATTACH_FULL
	StatusClosed    Status = C.ATTACH_CLOSED
	StatusMalformed Status = C.ATTACH_MALFORMED
	StatusNoDevice  Status = C.ATTACH_NO_DEVICE
	StatusUnknown   Status = C.ATTACH_UNKNOWN
	StatusInternal  Status = C.ATTACH_INTERNAL
	StatusRefused   Status = C.ATTACH_REFUSED
	StatusAway      Status = C.ATTACH_AWAY
	StatusOwn       Status = C.ATTACH_OWN
	StatusHidden    Status = C.ATTACH_HIDDEN
)

var statusText = [...]string{
	"ok", "the peer is not a process of this slice", "no free process slot or device", "the slice was released",
	"malformed message", "the slice has no quota on that device", "there is no driver truth", "the enforcer failed",
	"the bytes do not fit", "the slice is evicted", "host memory is the process's own", "/proc does not show the peer to the enforcer",
}

func (s Status) Error() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// Request is a message of a process.
type Request struct {
	Op     Op
	Device uint32   // OpTruth
	UUID   [16]byte // OpDevice
	Bytes  uint64   // OpDevice: of the device; OpHost: needed in total
	Used   uint64   // OpHost: bytes granted before
}

// Reply is the enforcer's reply.
type Reply struct {
	Status Status
	Lane   uint32 // OpAttach
	Device uint32 // OpDevice
	Bytes  uint64 // OpTruth
	Size   uint64 // OpAttach
	// PoolLanes has the lanes in the ledgers of the slice's pools, for OpAttach. Their descriptors follow the slice's, in the same order.
	PoolLanes [Pools]uint32
}

// Pools is the maximum number of pools of a slice.
const Pools = int(C.ATTACH_POOLS)

var errSize = errors.New("wrong size")

// DecodeRequest decodes a message from an untrusted peer.
func DecodeRequest(message []byte) (Request, error) {
	if len(message) != MessageSize {
		return Request{}, fmt.Errorf("%w: %d bytes, a request has %d", errSize, len(message), MessageSize)
	}
	var c C.struct_attach_request
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), MessageSize), message)
	r := Request{
		Op: Op(c.op), Device: uint32(c.device),
		UUID: *(*[16]byte)(unsafe.Pointer(&c.uuid)), Bytes: uint64(c.bytes), Used: uint64(c.used),
	}
	switch {
	case c.magic != C.ATTACH_MAGIC:
		return r, fmt.Errorf("magic is %#x", uint32(c.magic))
	case c.version != C.ATTACH_VERSION:
		return r, fmt.Errorf("protocol version is %d, this enforcer speaks %d", uint16(c.version), uint16(C.ATTACH_VERSION))
	case c.layout != C.LEDGER_LAYOUT:
		return r, fmt.Errorf("ledger layout is %d, this enforcer has %d", uint32(c.layout), uint32(C.LEDGER_LAYOUT))
	case r.Op < OpAttach || r.Op > OpHost:
		return r, fmt.Errorf("operation is %d", uint16(c.op))
	case c.reserved != [2]C.uint64_t{} || r.Used != 0 && r.Op != OpHost:
		return r, errors.New("fields of another operation are not zero")
	}
	return r, nil
}

func (r Request) Encode() []byte {
	c := C.struct_attach_request{
		magic: C.ATTACH_MAGIC, version: C.ATTACH_VERSION, op: C.uint16_t(r.Op),
		device: C.uint32_t(r.Device), layout: C.LEDGER_LAYOUT, bytes: C.uint64_t(r.Bytes), used: C.uint64_t(r.Used),
	}
	*(*[16]byte)(unsafe.Pointer(&c.uuid)) = r.UUID
	return C.GoBytes(unsafe.Pointer(&c), C.sizeof_struct_attach_request)
}

func (r Reply) Encode() []byte {
	c := C.struct_attach_reply{
		magic: C.ATTACH_MAGIC, version: C.ATTACH_VERSION, status: C.uint16_t(r.Status),
		lane: C.uint32_t(r.Lane), device: C.uint32_t(r.Device), bytes: C.uint64_t(r.Bytes), size: C.uint64_t(r.Size),
	}
	for i, lane := range r.PoolLanes {
		c.pool_lane[i] = C.uint16_t(lane)
	}
	return C.GoBytes(unsafe.Pointer(&c), C.sizeof_struct_attach_reply)
}

// DecodeReply decodes a message of the enforcer.
func DecodeReply(message []byte) (Reply, error) {
	if len(message) != MessageSize {
		return Reply{}, fmt.Errorf("%w: %d bytes, a reply has %d", errSize, len(message), MessageSize)
	}
	var c C.struct_attach_reply
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), MessageSize), message)
	if c.magic != C.ATTACH_MAGIC || c.version != C.ATTACH_VERSION {
		return Reply{}, fmt.Errorf("magic is %#x, version %d", uint32(c.magic), uint16(c.version))
	}
	r := Reply{Status: Status(c.status), Lane: uint32(c.lane), Device: uint32(c.device), Bytes: uint64(c.bytes), Size: uint64(c.size)}
	for i := range r.PoolLanes {
		r.PoolLanes[i] = uint32(c.pool_lane[i])
	}
	return r, nil
}
