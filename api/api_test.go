// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func good() RegisterRequest {
	return RegisterRequest{
		ID: "c1", PID: 4711, Container: "c1", Tenant: "physics", Mode: Enforce,
		Quotas: []Quota{{Device: AllDevices, Percent: 50}, {Device: "GPU-1", Bytes: 4 << 30}},
	}
}

func TestAGoodRequestIsValid(t *testing.T) {
	r := good()
	expect.NoError(t, r.Validate())
	r.Mode, r.Container, r.Session = "", "", true
	expect.NoError(t, r.Validate())
	r.Mode, r.Quotas = Record, nil
	expect.NoError(t, r.Validate())
}

func TestABadRequestIsRefusedWithAReason(t *testing.T) {
	for want, change := range map[string]func(*RegisterRequest){
		"slice id":        func(r *RegisterRequest) { r.ID = "../etc" },
		"pool name":       func(r *RegisterRequest) { r.Pools = PoolNames{"../night"} },
		"only records":    func(r *RegisterRequest) { r.Pools, r.Mode = PoolNames{"night"}, Record },
		"named twice":     func(r *RegisterRequest) { r.Pools = PoolNames{"a", "b", "a"} },
		"17 pools":        func(r *RegisterRequest) { r.Pools = make(PoolNames, 17) },
		"tenant":          func(r *RegisterRequest) { r.Tenant = "a\nb" },
		"tenant name":     func(r *RegisterRequest) { r.Tenant = "a+b" },
		"63 letters":      func(r *RegisterRequest) { r.Tenant = strings.Repeat("a", 64) },
		"has 'ä'":         func(r *RegisterRequest) { r.ID = "ä b" },
		"mode":            func(r *RegisterRequest) { r.Mode = "Enforce" },
		"ttl 1ms":         func(r *RegisterRequest) { r.TTL = time.Millisecond },
		"ttl -1ns":        func(r *RegisterRequest) { r.TTL = -1 },
		"pid 0":           func(r *RegisterRequest) { r.PID = 0 },
		"not of both":     func(r *RegisterRequest) { r.Session = true },
		"not an id":       func(r *RegisterRequest) { r.Container = "a\nb" },
		"0 quotas":        func(r *RegisterRequest) { r.Quotas = nil },
		"65 quotas":       func(r *RegisterRequest) { r.Quotas = make([]Quota, 65) },
		"device \"\"":     func(r *RegisterRequest) { r.Quotas[0].Device = "" },
		"two quotas":      func(r *RegisterRequest) { r.Quotas[1].Device = AllDevices },
		"0 bytes and 0":   func(r *RegisterRequest) { r.Quotas[1].Bytes = 0 },
		"exactly one":     func(r *RegisterRequest) { r.Quotas[1].Percent = 1 },
		"too large":       func(r *RegisterRequest) { r.Quotas[1].Bytes = math.MaxUint64 },
		"is 101 percent:": func(r *RegisterRequest) { r.Quotas[0].Percent = 101 },
	} {
		r := good()
		change(&r)
		if err := r.Validate(); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestAnErrorIsTheSameOnBothSides(t *testing.T) {
	sent := fmt.Errorf("register: %w", &Error{Code: CodeQuotaExceeded, Message: "no", Device: "GPU-1", Requested: 3, Limit: 2, Current: 1})
	var e *Error
	if !errors.As(sent, &e) {
		t.Fatal("not an Error")
	}
	b := must.Get(json.Marshal(e))(t)
	var received Error
	if err := json.Unmarshal(b, &received); err != nil || received != *e {
		t.Errorf("got %+v, %v", received, err)
	}
	if !errors.Is(&received, ErrQuotaExceeded) || errors.Is(&received, ErrNotFound) {
		t.Error("it is not told apart by its code")
	}
}

func TestARefusalHasAllOfItsFigures(t *testing.T) {
	for want, e := range map[string]*Error{
		`{"code":"quota_exceeded","message":"m","device":"GPU-1","requested":3,"limit":2,"current":0}`: {Code: CodeQuotaExceeded, Message: "m", Device: "GPU-1", Requested: 3, Limit: 2},
		`{"code":"quota_exceeded","message":"m","requested":3,"limit":0,"current":1}`:                  {Code: CodeQuotaExceeded, Message: "m", Requested: 3, Current: 1},
		`{"code":"not_found","message":"m"}`:                                                           {Code: CodeNotFound, Message: "m"},
	} {
		text := must.Get(json.Marshal(e))(t)
		expect.Equal(t, string(text), want)
		var again Error
		if err := json.Unmarshal(text, &again); err != nil || again != *e {
			t.Errorf("%+v, %v", again, err)
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, c := range Codes() {
		if status := c.Status(); (status == 500) != (c == CodeInternal || c == CodeStorage) || status < 400 {
			t.Errorf("%s has status %d", c, status)
		}
	}
}

func FuzzCheckID(f *testing.F) {
	f.Add("c1")
	f.Add("../x")
	f.Fuzz(func(t *testing.T, id string) {
		if CheckID(id) == nil && (strings.ContainsAny(id, "/\x00 \n%?#") || id == "." || id == ".." || id == "") {
			t.Errorf("%q would be a path of its own", id)
		}
	})
}

// A single pool is a string: older versions allowed one pool only, and stored records have that form.
func TestOnePoolIsAStringAndSeveralAreAList(t *testing.T) {
	for text, names := range map[string]PoolNames{`{"pool":"a"}`: {"a"}, `{"pool":["a","b"]}`: {"a", "b"}, `{}`: nil} {
		type holder struct {
			Pools PoolNames `json:"pool,omitempty"`
		}
		var got holder
		if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got.Pools, names) {
			t.Errorf("%s is %q, %v", text, got.Pools, err)
		}
		expect.Equal(t, string(must.Get(json.Marshal(holder{names}))(t)), text, names, "is written as")
	}
	var n PoolNames
	for _, text := range []string{`""`, `null`, `[]`} {
		if err := json.Unmarshal([]byte(text), &n); err != nil || len(n) != 0 {
			t.Errorf("%s is %q, %v", text, n, err)
		}
	}
	if json.Unmarshal([]byte(`{"a":1}`), &n) == nil || json.Unmarshal([]byte(`[1]`), &n) == nil {
		t.Error("what is no name was accepted")
	}
}
