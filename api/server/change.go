// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/api"
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
		if err := endReadDeadline(w, r); err != nil { // a client that hangs up does not end it either
			return nil, err
		}
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{})
		slice, err := move(s, r.Context(), id)
		_ = control.SetWriteDeadline(time.Now().Add(timeout(r)))
		return slice, err
	}
}

// endReadDeadline lets an answer take longer than a request may, once the request's body has arrived: net/http reads what is
// left of a body before it answers, and without a deadline would wait forever for one that was announced and is never sent.
func endReadDeadline(w http.ResponseWriter, r *http.Request) error {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		return unreadable(err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a handler without a socket has none
	return nil
}
