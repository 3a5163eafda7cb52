// SPDX-License-Identifier: Apache-2.0

// Package leasepb is the protocol of leases and of GPU sessions, generated from lease.proto, which explains it.
package leasepb

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

//go:generate go run ./generate

// Status is the failure as the error of a call: its message, and itself among the details.
func (f *Failure) Status(code codes.Code) error {
	s, err := status.New(code, f.GetMessage()).WithDetails(f)
	if err != nil { // only of a code that means success
		return status.Error(codes.Internal, f.GetMessage())
	}
	return s.Err()
}

// FollowedHeader is in the header of a Work stream, with the value "true", if the session goes on when its broker ends by itself: its client
// may connect again.
const FollowedHeader = "gpuslice-followed"
