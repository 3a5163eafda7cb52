// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestATimeToLiveIsReadAndWritten(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"never": 0, "0": 0, "1s": time.Second, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "876000h": MaxTTL, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "36500d": MaxTTL,
	} {
		expect.Equal(t, must.Get(ParseTTL(text))(t), want, text)
	}
	for _, text := range []string{"", "1", "0s", "999ms", "-1h", "876001h", "9999999999h", "d", "1d-2h", "-1d", "1.5d", "1dd", "36501d", "soon", "Never"} {
		if got, err := ParseTTL(text); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%q is accepted: %v, %v", text, got, err)
		} else if !strings.Contains(err.Error(), "876000h") || !strings.Contains(err.Error(), `"never" or 0`) {
			t.Errorf("%q: %v does not say what is accepted", text, err)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Hour: "0s", time.Second: "1s", 1499 * time.Millisecond: "1s", 90 * time.Second: "1m30s", time.Hour: "1h",
		time.Hour + 5*time.Second: "1h5s", 48 * time.Hour: "48h", 2*time.Hour - 1: "2h",
	} {
		expect.Equal(t, FormatTTL(d), want, d)
	}
}

func TestAChangeOfNothingIsRefused(t *testing.T) {
	second, hour, tiny := time.Second, time.Hour, time.Millisecond
	none := time.Duration(0)
	for what, err := range map[string]error{
		"nothing":          (&ChangeRequest{}).Validate(),
		"too short":        (&ChangeRequest{TTL: &tiny}).Validate(),
		"no bytes":         (&ChangeRequest{Quotas: []Quota{{Device: AllDevices}}, TTL: &hour}).Validate(),
		"a device twice":   (&ChangeRequest{Quotas: []Quota{{Device: "0", Bytes: 1}, {Device: "0", Bytes: 1}}}).Validate(),
		"renewed by what?": (&RenewRequest{}).Validate(),
		"renewed too long": (&RenewRequest{TTL: ptr(MaxTTL + 1)}).Validate(),
	} {
		expect.ErrorIs(t, err, ErrBadRequest, what)
	}
	for what, err := range map[string]error{
		"a time":       (&ChangeRequest{TTL: &second}).Validate(),
		"for ever":     (&ChangeRequest{TTL: &none}).Validate(),
		"a quota":      (&ChangeRequest{Quotas: []Quota{{Device: AllDevices, Percent: 10}}}).Validate(),
		"renewed":      (&RenewRequest{TTL: &hour}).Validate(),
		"without end":  (&RenewRequest{TTL: &none}).Validate(),
		"the longest":  (&RenewRequest{TTL: ptr(MaxTTL)}).Validate(),
		"the shortest": (&RenewRequest{TTL: ptr(MinTTL)}).Validate(),
	} {
		expect.NoError(t, err, what)
	}
}

func ptr[T any](v T) *T { return &v }
