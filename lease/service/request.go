// SPDX-License-Identifier: Apache-2.0

package service

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// newID returns a random id. Nothing depends on its secrecy.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "lease-" + hex.EncodeToString(b[:])
}

// checkRequest checks what is invalid on any host.
func (s *Service) checkRequest(r *leasepb.AcquireRequest) error {
	if _, err := ttlOf(r.GetTtl()); err != nil {
		return err
	}
	switch {
	case r.GetVram() == 0 || r.GetVram() > math.MaxInt64:
		return invalid("vram is %d bytes: 1 to %d are accepted", r.GetVram(), uint64(math.MaxInt64))
	case r.GetClients() > uint32(s.MaxClients):
		return invalid("%d clients at one time: up to %d are accepted", r.GetClients(), s.MaxClients)
	case r.GetTenant() != "" && api.CheckTenant(r.GetTenant()) != nil:
		return invalid("%s", api.CheckTenant(r.GetTenant()).Error())
	}
	if l := r.GetLinger(); l != nil && (l.CheckValid() != nil || l.AsDuration() < 0 || l.AsDuration() > api.MaxTTL) {
		return invalid("linger is %v: 0 to %s are accepted", l.AsDuration(), api.FormatTTL(api.MaxTTL))
	}
	return nil
}

// ttlOf returns a lease's time to live; 0 is the enforcer's maximum.
func ttlOf(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < api.MinTTL || d.AsDuration() > api.MaxTTL {
		return 0, invalid("a ttl of %v is not accepted: %s to %s are", d.AsDuration(), api.FormatTTL(api.MinTTL), api.FormatTTL(api.MaxTTL))
	}
	return d.AsDuration(), nil
}

type failure struct {
	leasepb.Failure
	status codes.Code
}

func (f *failure) Error() string { return f.GetMessage() }

func failed(code leasepb.Code, advice, format string, args ...any) error {
	f := &failure{status: codes.FailedPrecondition}
	f.Code, f.Message, f.Advice = code, fmt.Sprintf(format, args...), advice
	switch code {
	case leasepb.Code_INVALID_REQUEST:
		f.status = codes.InvalidArgument
	case leasepb.Code_NOT_FOUND:
		f.status = codes.NotFound
	case leasepb.Code_REFUSED:
		f.status = codes.ResourceExhausted
	}
	return f
}

func invalid(format string, args ...any) error {
	return failed(leasepb.Code_INVALID_REQUEST, "", format, args...)
}

// refusal converts an error of the enforcer or of this host to a failure.
func refusal(err error) error {
	var ours *failure
	if errors.As(err, &ours) {
		return ours
	}
	f := &failure{status: codes.Unavailable}
	f.Code, f.Message = leasepb.Code_REFUSED, err.Error()
	var theirs *api.Error
	if !errors.As(err, &theirs) {
		return f
	}
	f.status = codes.Internal
	switch theirs.Code {
	case api.CodeBadRequest, api.CodeNoDevice:
		f.Code, f.status = leasepb.Code_INVALID_REQUEST, codes.InvalidArgument
	case api.CodeForbidden:
		f.status = codes.PermissionDenied
	case api.CodeBusy:
		f.status = codes.Unavailable
	case api.CodeQuotaExceeded:
		f.status = codes.ResourceExhausted
		if theirs.Requested > 0 { // otherwise the quota is not in bytes
			f.Requested, f.Limit, f.Current = &theirs.Requested, &theirs.Limit, &theirs.Current
		}
	}
	return f
}
