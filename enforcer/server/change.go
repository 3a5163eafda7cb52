// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func change(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := sliceID(r)
	if err != nil {
		return nil, err
	}
	var request api.ChangeRequest
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &request); err != nil {
		return nil, err
	}
	if err := request.Validate(); err != nil {
		return nil, err
	}
	noteOf(r).quotas = request.Quotas
	if request.TTL != nil {
		noteOf(r).ttl = *request.TTL
	}
	return s.Change(r.Context(), id, request)
}

func renew(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := sliceID(r)
	if err != nil {
		return nil, err
	}
	var request api.RenewRequest
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &request); err != nil {
		return nil, err
	}
	if err := request.Validate(); err != nil {
		return nil, err
	}
	if request.TTL != nil {
		noteOf(r).ttl = *request.TTL
	}
	return s.Renew(r.Context(), id, request)
}

// moved answers once the memory of a slice is in host memory, or back: that takes as long as it takes.
func moved(move func(Service, context.Context, string) (api.Slice, error)) handleFunc {
	return func(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
		id, err := sliceID(r)
		if err != nil {
			return nil, err
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Time{}) // who hangs up does not end it either
		_ = control.SetWriteDeadline(time.Time{})
		slice, err := move(s, r.Context(), id)
		_ = control.SetWriteDeadline(time.Now().Add(timeout(r)))
		return slice, err
	}
}
