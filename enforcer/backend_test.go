// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/native"
)

func TestNativeIsInForceWhereItIsProvenToWorkOnly(t *testing.T) {
	if !inV2(t) {
		return
	}
	for why, b := range map[string]native.Backend{
		"there is no NVML":           nil,
		"R615":                       oldDriver{},
		"to 18446744073709551615":    &fakeBackend{forget: true},
		"configuration says so":      &fakeBackend{},
		"the driver does not answer": &fakeBackend{hang: make(chan struct{})},
	} {
		h := newHost(t, &fakeTruth{})
		h.stop()
		h.options.Backend = b
		if strings.HasPrefix(why, "configuration") {
			h.options.Enforcement = api.Intercept
		}
		h.start()
		devices, err := h.Devices(context.Background())
		if err != nil || devices[0].Enforcement != api.Intercept || !strings.Contains(devices[0].EnforcementReason, why) {
			t.Errorf("%s: %+v, %v", why, devices, err)
		}
		h.stop()
		h.options.Enforcement = api.Native
		if strings.HasPrefix(why, "configuration") {
			continue
		}
		if e, err := enforcer.New(h.options); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: it starts: %v", why, err)
			if e != nil {
				e.Close()
			}
		}
		left, err := filepath.Glob("/sys/fs/cgroup/gpuslice-probe-*")
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left: %v, %v", why, left, err)
		}
	}
}

// oldDriver has no limits.
type oldDriver struct{}

var errOld = fmt.Errorf("%w: it is older than R615", driver.ErrNoLimits)

func (oldDriver) Limit(string, string, uint64) error     { return errOld }
func (oldDriver) Limited(string, string) (uint64, error) { return 0, errOld }
func (oldDriver) Unlimit(string, string) error           { return errOld }

func TestOnAHostWithBothVersionsOfCgroupsTheInterceptorEnforces(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		return // only version 2, which the tests above cover
	}
	f := &fakeBackend{}
	h := newNativeHost(t, f)
	devices, err := h.Devices(context.Background())
	want := "version 1"
	if os.Geteuid() != 0 {
		want = "sessions"
	}
	if err != nil || devices[0].Enforcement != api.Intercept || !strings.Contains(devices[0].EnforcementReason, want) {
		t.Errorf("%+v, %v", devices, err)
	}
}
