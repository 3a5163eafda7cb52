// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"

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
