// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"

	"github.com/gpuslice/gpuslice/api"
)

// PoolService has the methods of Service for pools.
type PoolService interface {
	Pools(ctx context.Context) ([]api.Pool, error)
	Pool(ctx context.Context, name string) (api.Pool, error)
	CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error)
	SetPool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error)
	DeletePool(ctx context.Context, name string) (api.Pool, error)
}

func pools(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
	all, err := s.Pools(r.Context())
	return list(all), err
}

func pool(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
	name, err := poolName(r)
	if err != nil {
		return nil, err
	}
	return s.Pool(r.Context(), name)
}

func createPool(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	name, request, err := poolRequest(w, r)
	if err != nil {
		return nil, err
	}
	return s.CreatePool(r.Context(), name, request)
}

func setPool(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	name, request, err := poolRequest(w, r)
	if err != nil {
		return nil, err
	}
	return s.SetPool(r.Context(), name, request)
}

func deletePool(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
	name, err := poolName(r)
	if err != nil {
		return nil, err
	}
	return s.DeletePool(r.Context(), name)
}

func poolName(r *http.Request) (string, error) {
	name := r.PathValue("name")
	return name, api.CheckPoolName(name)
}

func poolRequest(w http.ResponseWriter, r *http.Request) (name string, request api.PoolRequest, err error) {
	if name, err = poolName(r); err != nil {
		return name, request, err
	}
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &request); err != nil {
		return name, request, err
	}
	if err := request.Validate(); err != nil {
		return name, request, err
	}
	noteOf(r).quotas = request.Quotas
	return name, request, nil
}
