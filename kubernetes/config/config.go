// SPDX-License-Identifier: Apache-2.0

// Package config parses this driver's opaque configuration in a device class or a claim, and checks the fields that each of them
// may set. It does no I/O.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/api"
)

const (
	// Driver is the name of the driver in Kubernetes' API.
	Driver = "gpuslice.io"

	apiVersion = "gpuslice.io/v1"
	kind       = "ClaimConfig"
)

// RequestConfig is the configuration of one request of a claim.
type RequestConfig struct {
	Tenant   string        // tenant charged for its memory
	TTL      time.Duration // limit per container; 0 for none
	Elastic  bool          // its memory may be evicted while its containers are idle
	Priority int           // for elastic requests: api.MinPriority to api.MaxPriority; the lowest is evicted first
}

type parameters struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Mode       *string `json:"mode"`
	TTL        *string `json:"ttl"`
	Tenant     *string `json:"tenant"`
	Elastic    *bool   `json:"elastic"`
	Priority   *int    `json:"priority"`
}

// ForRequest returns the configuration of a request of a claim, which must be allocated. Kubernetes lists the class's configuration before
// the claim's, so the claim's values win. Errors are sentences for the author of the claim.
func ForRequest(claim *resourceapi.ResourceClaim, request string) (RequestConfig, error) {
	r := RequestConfig{Tenant: claim.Namespace}
	for _, c := range claim.Status.Allocation.Devices.Config {
		if c.Opaque == nil || c.Opaque.Driver != Driver || !concerns(c.Requests, request) {
			continue
		}
		p, err := parse(c.Opaque.Parameters.Raw)
		if err == nil {
			err = r.apply(p, c.Source == resourceapi.AllocationConfigSourceClass)
		}
		if err != nil {
			return RequestConfig{}, fmt.Errorf("the configuration of request %s: %w", request, err)
		}
	}
	return r, nil
}

// concerns reports whether a configuration for requests applies to request, which may be a subrequest.
func concerns(requests []string, request string) bool {
	parent, _, _ := strings.Cut(request, "/")
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, parent)
}

func parse(raw []byte) (p parameters, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		if field, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return p, fmt.Errorf("field %s is unknown: apiVersion, kind, mode, ttl, tenant, elastic and priority are accepted", field)
		}
		return p, fmt.Errorf("it cannot be read: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return p, errors.New("there is text after the JSON object: give exactly one")
	}
	if p.APIVersion != apiVersion || p.Kind != kind {
		return p, fmt.Errorf("apiVersion %q and kind %q are not accepted: use %q and %q", p.APIVersion, p.Kind, apiVersion, kind)
	}
	return p, nil
}

// apply sets the fields that p has. fromClass permits tenant and priority, which a claim may not set.
func (r *RequestConfig) apply(p parameters, fromClass bool) error {
	if p.Mode != nil && *p.Mode != string(api.Enforce) {
		return fmt.Errorf("mode %q is not accepted in a claim: use %q, or leave it out", *p.Mode, api.Enforce)
	}
	if p.TTL != nil {
		ttl, err := api.ParseDuration(*p.TTL)
		if err != nil || ttl < api.MinTTL || ttl > api.MaxTTL {
			return fmt.Errorf(`ttl %q is not accepted: use a duration from %s to %s, such as "90s", "30m", "12h" or "7d"`,
				*p.TTL, api.FormatTTL(api.MinTTL), api.FormatTTL(api.MaxTTL))
		}
		r.TTL = ttl
	}
	if p.Tenant != nil {
		if !fromClass {
			return errors.New("a claim may not name its tenant: the tenant is the namespace unless the device class names another")
		}
		if err := api.CheckTenant(*p.Tenant); err != nil {
			return err
		}
		r.Tenant = *p.Tenant
	}
	if p.Elastic != nil {
		r.Elastic = *p.Elastic
	}
	if p.Priority != nil {
		if !fromClass {
			return errors.New("a claim may not name its priority: only its device class may, such as elastic.gpuslice.io")
		}
		if *p.Priority < api.MinPriority || *p.Priority > api.MaxPriority {
			return fmt.Errorf("priority %d is not accepted: use %d to %d", *p.Priority, api.MinPriority, api.MaxPriority)
		}
		r.Priority = *p.Priority
	}
	return nil
}
