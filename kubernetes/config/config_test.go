// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const head = `"apiVersion":"gpuslice.io/v1","kind":"ClaimConfig"`

func claim(configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Namespace = "team"
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Config: configs}}
	return c
}

func said(source resourceapi.AllocationConfigSource, text string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(text)}},
	}}
}

func TestTenantIsTheNamespaceUnlessTheClassNamesOne(t *testing.T) {
	if r, err := ForRequest(claim(), "gpu"); err != nil || r != (RequestConfig{Tenant: "team"}) {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err := ForRequest(claim(said(resourceapi.AllocationConfigSourceClass, `{`+head+`,"tenant":"physics","ttl":"1h"}`)), "gpu")
	if err != nil || r != (RequestConfig{Tenant: "physics", TTL: time.Hour}) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestClaimValuesOverrideClassValues(t *testing.T) {
	c := claim(said(resourceapi.AllocationConfigSourceClass, `{`+head+`,"ttl":"1h"}`),
		said(resourceapi.AllocationConfigSourceClaim, `{`+head+`,"mode":"enforce","ttl":"30m"}`, "gpu"))
	for request, want := range map[string]time.Duration{"gpu": 30 * time.Minute, "gpu/large": 30 * time.Minute, "other": time.Hour} {
		if r, err := ForRequest(c, request); err != nil || r.TTL != want {
			t.Errorf("%s: got %+v, %v, want %v", request, r, err, want)
		}
	}
	foreign := said(resourceapi.AllocationConfigSourceClaim, `nonsense`)
	foreign.Opaque.Driver = "other.io"
	if _, err := ForRequest(claim(foreign), "gpu"); err != nil {
		t.Errorf("another driver's: %v", err)
	}
}

func TestTTLMayBeInDays(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second} {
		if r, err := ForRequest(claim(said(resourceapi.AllocationConfigSourceClaim, `{`+head+`,"ttl":"`+text+`"}`)), "gpu"); err != nil || r.TTL != want {
			t.Errorf("%s: got %+v, %v, want %v", text, r, err, want)
		}
	}
}

func TestMalformedConfigurationIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`nonsense`:                       "it cannot be read",
		`{` + head + `}{}`:               "text after the JSON object",
		`{` + head + `,"vram":"4G"}`:     `field "vram" is unknown: apiVersion, kind, mode, ttl, tenant, elastic and priority are accepted`,
		`{` + head + `,"elastic":"yes"}`: "it cannot be read",
		`{` + head + `,"priority":-5}`:   "a claim may not name its priority",
		`{"kind":"ClaimConfig"}`:         `use "gpuslice.io/v1" and "ClaimConfig"`,
		`{` + head + `,"mode":"record"}`: `mode "record" is not accepted`,
		`{` + head + `,"ttl":"soon"}`:    `ttl "soon" is not accepted`,
		`{` + head + `,"ttl":"1ns"}`:     `ttl "1ns" is not accepted`,
		`{` + head + `,"tenant":"x"}`:    "a claim may not name its tenant",
	} {
		_, err := ForRequest(claim(said(resourceapi.AllocationConfigSourceClaim, text)), "gpu")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "the configuration of request gpu: ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ForRequest(claim(said(resourceapi.AllocationConfigSourceClass, `{`+head+`,"tenant":"a b"}`)), "gpu"); err == nil {
		t.Error("a tenant that is no name")
	}
	if _, err := ForRequest(claim(said(resourceapi.AllocationConfigSourceClass, `{`+head+`,"priority":1001}`)), "gpu"); err == nil || !strings.Contains(err.Error(), "use -1000 to 1000") {
		t.Errorf("a priority beyond all: %v", err)
	}
}
