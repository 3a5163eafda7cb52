// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

func TestErrorIsTheSameInClientAndServer(t *testing.T) {
	sent := fmt.Errorf("register: %w", &Error{Code: CodeQuotaExceeded, Message: "no", Device: "GPU-1", Requested: 3, Limit: 2, Current: 1})
	var e *Error
	must.True(t, errors.As(sent, &e), "not an Error")
	b := must.Get(json.Marshal(e))(t)
	var received Error
	if err := json.Unmarshal(b, &received); err != nil || received != *e {
		t.Errorf("got %+v, %v", received, err)
	}
	expect.True(t, errors.Is(&received, ErrQuotaExceeded) && !errors.Is(&received, ErrNotFound), "the error is not distinguished by its code")
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
	expect.True(t, json.Unmarshal([]byte(`{"a":1}`), &n) != nil && json.Unmarshal([]byte(`[1]`), &n) != nil, "an invalid name was accepted")
}

func TestNamesOfStrangersArePrintableAndBounded(t *testing.T) {
	long := strings.Repeat("é", 400)
	for given, want := range map[string]string{
		"train":                     "train",
		"registry/a:1@x":            "registry/a:1@x",
		"名":                         "名",
		"a\x1b[2J\nb":               `a\x1b[2J\nb`,
		"\u009b31m\u202e\xff":       `\u009b31m\u202e\xff`,
		`a\b"c'`:                    `a\b"c'`,
		long:                        long[:252] + "…",
		strings.Repeat("\x00", 300): strings.Repeat(`\x00`, 63) + `\…`,
		strings.Repeat("x", 256):    strings.Repeat("x", 256),
	} {
		got := Names{Name: given, Pod: given, Namespace: given, Image: given}.Bounded()
		if got != (Names{want, want, want, want}) || len(got.Name) > MaxName {
			t.Errorf("%.20q became %q, want %q", given, got.Name, want)
		}
		expect.NoError(t, got.checkNames(), got)
	}
}

func TestUnprintableNamesAreRefused(t *testing.T) {
	for _, text := range []string{"a\nb", "\x1b[2J", "\u009b", "\xff", strings.Repeat("x", MaxName+1)} {
		for _, n := range []Names{{Name: text}, {Pod: text}, {Namespace: text}, {Image: text}} {
			r := RegisterRequest{ID: "a", PID: 1, Quotas: []Quota{{Device: AllDevices, Bytes: 1}}, Names: n}
			if err := r.Validate(); err == nil || strings.ContainsAny(err.Error(), "\n\x1b\u009b") {
				t.Errorf("%q: %v", n, err)
			}
		}
	}
}

func TestATokenIsNotPrinted(t *testing.T) {
	secret := strings.Repeat("5a", 32)
	token := Token(secret)
	var log bytes.Buffer
	for _, l := range []*slog.Logger{slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.NewJSONHandler(&log, nil))} {
		l.Info("shown", "token", token, "in", []any{token})
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&log, verb, token)
		fmt.Fprintf(&log, verb, struct{ T Token }{token})
	}
	// The JSON of a structure contains the token: programs need it in the request.
	text := strings.ReplaceAll(log.String(), `"in":["`+secret+`"]`, "")
	expect.True(t, !strings.Contains(text, secret), "it is in", text)
	expect.Equal(t, string(must.Get(json.Marshal(token))(t)), `"`+secret+`"`)
}

func TestTokenFileRoundTrips(t *testing.T) {
	secret := bytes.Repeat([]byte{0xa5}, 32)
	text := FormatTokenFile("u1-run", secret)
	id, token, err := ParseTokenFile(text)
	if b, ok := token.Bytes(); err != nil || id != "u1-run" || !ok || !bytes.Equal(b, secret) || len(text) > MaxTokenFile {
		t.Errorf("%q, %v", id, err)
	}
	for _, wrong := range []string{"", "\n", "u1-run", "u1-run ", text + "x", "a/b " + string(token), " " + string(token), "u1-run " + string(token[1:]), "u1-run " + string(token) + "00"} {
		if _, _, err := ParseTokenFile(wrong); err == nil || strings.Contains(err.Error(), string(token[1:])) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestAUsersSessionHasAnIDThatBeginsWithTheUser(t *testing.T) {
	for _, c := range []struct {
		uid        uint32
		name, want string
	}{
		{5001, "train", "u5001-train"},
		{5001, "u5001-train", "u5001-train"},
		{5001, "u500-train", "u5001-u500-train"}, // of another user
		{0, "run-1", "u0-run-1"},
		{1<<32 - 1, "a", "u4294967295-a"},
	} {
		expect.Equal(t, UserSessionID(c.uid, c.name), c.want, c.uid, c.name)
	}
}

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
