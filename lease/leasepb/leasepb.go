// SPDX-License-Identifier: Apache-2.0

// Package leasepb is the protocol of leases and GPU sessions, generated from lease.proto, which documents it.
package leasepb

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

//go:generate go run ./generate

// Status returns the failure as a gRPC status error with that code. The failure is among the details.
func (f *Failure) Status(code codes.Code) error {
	s, err := status.New(code, f.GetMessage()).WithDetails(f)
	if err != nil { // code is OK
		return status.Error(codes.Internal, f.GetMessage())
	}
	return s.Err()
}

// CapabilityHeader is the compute capability of the session's device in the header of a Work stream, such as "9.0".
const CapabilityHeader = "gpuslice-compute-capability"

// FollowedHeader is "true" in the header of a Work stream if another broker follows when the session's broker ends by itself.
// The client may then connect again.
const FollowedHeader = "gpuslice-followed"
