// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Code classifies an [Error]; lease.proto explains each code.
type Code = leasepb.Code

// The codes of an [Error].
const (
	Expired        = leasepb.Code_LEASE_EXPIRED
	AllocFailed    = leasepb.Code_ALLOC_FAILED
	InvalidHandle  = leasepb.Code_INVALID_HANDLE
	LoadFailed     = leasepb.Code_LOAD_FAILED
	LaunchFailed   = leasepb.Code_LAUNCH_FAILED
	SyncFailed     = leasepb.Code_SYNC_FAILED
	InvalidRequest = leasepb.Code_INVALID_REQUEST
	Refused        = leasepb.Code_REFUSED
	NotFound       = leasepb.Code_NOT_FOUND
)

// Error is a failure reported by the lease service or a broker.
type Error struct {
	Code    Code
	Message string
	Advice  string // what to do; may be empty
	Log     string // the driver's compiler log
	// Bytes, for [AllocFailed], and for [Refused] if memory is exhausted.
	Requested, Limit, Current uint64
	// Lost means that all buffers and modules of the session are gone with its broker. Without it, a connection to another
	// machine may have failed alone.
	Lost bool
}

// Error includes the advice.
func (e *Error) Error() string {
	if e.Advice == "" {
		return fmt.Sprintf("%v: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%v: %s (%s)", e.Code, e.Message, e.Advice)
}

func failure(f *leasepb.Failure) error {
	return &Error{
		Code: f.GetCode(), Message: f.GetMessage(), Advice: f.GetAdvice(), Log: f.GetLog(),
		Requested: f.GetRequested(), Limit: f.GetLimit(), Current: f.GetCurrent(), Lost: f.GetLost(),
	}
}

// fromStatus returns the [*Error] in the status of a call, or err if there is none.
func fromStatus(err error) error {
	for _, detail := range status.Convert(err).Details() {
		if f, ok := detail.(*leasepb.Failure); ok {
			return failure(f)
		}
	}
	return err
}
