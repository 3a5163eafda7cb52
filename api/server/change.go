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

// handleMove answers when the move to or from host memory is complete, without a timeout.
func handleMove(move func(Service, context.Context, string) (api.Slice, error)) handleFunc {
	return func(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
		id, err := sliceID(r)
		if err != nil {
			return nil, err
		}
		if err := endReadDeadline(w, r); err != nil {
			return nil, err
		}
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{})
		slice, err := move(s, r.Context(), id) // a client that disconnects ends the wait for the slice, but not a move that has begun
		_ = control.SetWriteDeadline(time.Now().Add(timeout(r)))
		return slice, err
	}
}

// endReadDeadline reads the request's body and removes the read deadline, so that the answer can take longer. The order matters:
// net/http reads the rest of a body before it answers, and would wait forever for one that never arrives.
func endReadDeadline(w http.ResponseWriter, r *http.Request) error {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		return unreadable(err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // fails in a handler without a socket
	return nil
}
