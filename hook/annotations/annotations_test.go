// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/gpuslice/gpuslice/api"
)

const uuid = "GPU-0a1b2c3d-1111-2222-3333-444455556666"

func TestEveryAnnotationOfTheContractIsRead(t *testing.T) {
	got, err := Parse(map[string]string{
		"gpuslice.vram":               "4G",
		"gpuslice.vram.1":             "50%",
		"gpuslice.vram." + uuid:       "512m",
		"gpuslice.pool":               "team-a",
		"gpuslice.tenant":             "alice.example",
		"gpuslice.ttl":                "1h30m",
		"gpuslice.elastic":            "true",
		"gpuslice.priority":           "-7",
		"gpuslice.mode":               "record",
		"io.kubernetes.cri.something": "else",
	}, nil, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Request{
		Quotas: []api.Quota{
			{Device: api.AllDevices, Bytes: 4 << 30},
			{Device: "1", Percent: 50},
			{Device: uuid, Bytes: 512 << 20},
		},
		Mode: api.Record, Pools: api.PoolNames{"team-a"}, Tenant: "alice.example", TTL: 90 * time.Minute,
		Elastic: true, Priority: -7,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestABadAnnotationIsRefusedInOneSentence(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	for _, c := range []struct {
		key, value string
		says       []string // substrings of the error
	}{
		{"gpuslice.elastic", "yes", []string{`gpuslice.elastic="yes"`, `"true" and "false"`}},
		{"gpuslice.priority", "1001", []string{`gpuslice.priority="1001"`, "-1000 to 1000"}},
		{"gpuslice.priority", "high", []string{`gpuslice.priority="high"`, "-1000 to 1000"}},
		{"gpuslice.vram", "", []string{`gpuslice.vram=""`, `"4G"`}},
		{"gpuslice.vram", "500", []string{`gpuslice.vram="500"`, `a size with its unit, such as "500m" or "500b" for bytes`}},
		{"gpuslice.vram", "0", []string{`gpuslice.vram="0"`, `"4G"`}},
		{"gpuslice.vram", "-1", []string{`"-1"`, `"4G"`}},
		{"gpuslice.vram", "4Q", []string{`"4Q"`, `"4G"`}},
		{"gpuslice.vram", "0.3", []string{`"0.3"`}},
		{"gpuslice.vram", "99999999999999999999G", []string{`"99999999999999999999G"`}},
		{"gpuslice.vram", "101%", []string{`"101%"`, `"50%"`}},
		{"gpuslice.vram", "0%", []string{`"0%"`}},
		{"gpuslice.vram", "4G\n", []string{`"4G\n"`}},
		{"gpuslice.vram", long, []string{`999"…`}},
		{"gpuslice.vram.0", "none", []string{`gpuslice.vram.0="none"`, `"4G"`}},
		{"gpuslice.vram.", "4G", []string{"gpuslice.vram.", "names no device", "nvidia-smi -L"}},
		{"gpuslice.vram.01", "4G", []string{"gpuslice.vram.01", "names no device"}},
		{"gpuslice.vram.+1", "4G", []string{"names no device"}},
		{"gpuslice.vram.-1", "4G", []string{"names no device"}},
		{"gpuslice.vram.1024", "4G", []string{"names no device"}},
		{"gpuslice.vram.all", "4G", []string{"names no device"}},
		{"gpuslice.vram.*", "4G", []string{"names no device"}},
		{"gpuslice.vram.GPU-12", "4G", []string{"names no device"}},
		{"gpuslice.vram.TPU-" + uuid[4:], "4G", []string{"names no device"}},
		{"gpuslice.vram." + uuid[:39] + "g", "4G", []string{"names no device"}},
		{"gpuslice.vram." + long, "4G", []string{`…`, "names no device"}},
		{"gpuslice.pool", "", []string{`gpuslice.pool=""`, "1 to 63"}},
		{"gpuslice.pool", "../x", []string{`"../x"`, "1 to 63"}},
		{"gpuslice.pool", ".x", []string{`".x"`}},
		{"gpuslice.pool", "a b", []string{`"a b"`}},
		{"gpuslice.tenant", strings.Repeat("a", 64), []string{"gpuslice.tenant", "1 to 63"}},
		{"gpuslice.tenant", "a\x1b[31m", []string{`"a\x1b[31m"`}},
		{"gpuslice.tenant", "été", []string{"gpuslice.tenant"}},
		{"gpuslice.ttl", "", []string{`gpuslice.ttl=""`, `"30m"`}},
		{"gpuslice.ttl", "10", []string{`"10"`, `"30m"`}},
		{"gpuslice.ttl", "0s", []string{`"0s"`}},
		{"gpuslice.ttl", "-1h", []string{`"-1h"`}},
		{"gpuslice.ttl", "1ms", []string{`"1ms"`, "from 1s to 876000h"}},
		{"gpuslice.ttl", "9999999999h", []string{`"9999999999h"`}},
		{"gpuslice.ttl", "876001h", []string{`"876001h"`, "from 1s to 876000h"}},
		{"gpuslice.mode", "", []string{`gpuslice.mode=""`, `"enforce" and "record"`}},
		{"gpuslice.mode", "Enforce", []string{`"Enforce"`, `"record"`}},
		{"gpuslice.vrma", "4G", []string{"gpuslice.vrma is unknown", "gpuslice.vram,"}},
		{"gpuslice.", "4G", []string{"gpuslice. is unknown"}},
		{"GPUSlice.vram", "4G", []string{`"GPUSlice.vram" is unknown`}},
		{"gpuslice.vram\n", "4G", []string{`"gpuslice.vram\n" is unknown`}},
		{"gpuslice.io/vram", "4G", []string{"gpuslice.io/vram is unknown"}},
	} {
		// A valid quota must not hide the invalid annotation.
		all := map[string]string{"gpuslice.vram.7": "1G"}
		all[c.key] = c.value
		got, err := Parse(all, nil, Policy{DefaultVRAM: "1G", Pass: true})
		if err == nil {
			t.Errorf("%.40q=%.40q is accepted: %+v", c.key, c.value, got)
			continue
		}
		checkSentence(t, err)
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%.40q=%.40q: %q does not say %q", c.key, c.value, err, s)
			}
		}
	}
}

func checkSentence(t *testing.T, err error) {
	t.Helper()
	if len(err.Error()) > 400 {
		t.Errorf("%d characters are no sentence: %.100s…", len(err.Error()), err)
	}
	if strings.ContainsFunc(err.Error(), unicode.IsControl) {
		t.Errorf("%q has control characters", err)
	}
}

func TestOneDeviceHasOneQuota(t *testing.T) {
	_, err := Parse(map[string]string{
		"gpuslice.vram." + uuid:                  "1G",
		"gpuslice.vram." + strings.ToLower(uuid): "2G",
	}, nil, Policy{})
	if err == nil || !strings.Contains(err.Error(), "a second time") {
		t.Errorf("two quotas for one device: %v", err)
	}
}

func TestWithoutAQuotaTheOperatorDecides(t *testing.T) {
	none := map[string]string{"org.example": "x"}
	some := map[string]string{"gpuslice.tenant": "alice"}
	def := Request{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 2 << 30}}, Mode: api.Enforce}
	withTenant := def
	withTenant.Tenant = "alice"
	records, recording := map[string]string{"gpuslice.mode": "record"}, &Request{Mode: api.Record}
	for _, c := range []struct {
		name   string
		all    map[string]string
		policy Policy
		want   *Request
		err    error
	}{
		{"nothing set", none, Policy{}, nil, ErrMissing},
		{"nil", nil, Policy{}, nil, ErrMissing},
		{"pass", none, Policy{Pass: true}, nil, nil},
		{"record", none, Policy{Record: true}, recording, nil},
		{"record, a tenant", some, Policy{Record: true}, &Request{Mode: api.Record, Tenant: "alice"}, nil},
		{"a default before record", none, Policy{DefaultVRAM: "2G", Record: true}, &def, nil},
		{"record, and the container requests enforcement", map[string]string{"gpuslice.mode": "enforce"}, Policy{Record: true}, nil, ErrMissing},
		{"a default", none, Policy{DefaultVRAM: "2G"}, &def, nil},
		{"a default before pass", none, Policy{DefaultVRAM: "2G", Pass: true}, &def, nil},
		{"ours but no quota", some, Policy{}, nil, ErrMissing},
		{"ours but no quota does not pass", some, Policy{Pass: true}, nil, ErrMissing},
		{"record mode needs none", records, Policy{}, recording, nil},
		{"record mode needs no default", records, Policy{DefaultVRAM: "2G", Pass: true}, recording, nil},
		{"ours with a default", some, Policy{DefaultVRAM: "2G"}, &withTenant, nil},
	} {
		got, err := Parse(c.all, nil, c.policy)
		if !errors.Is(err, c.err) || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v; want %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
	if _, err := Parse(nil, nil, Policy{DefaultVRAM: "much"}); err == nil || !strings.Contains(err.Error(), "default_vram") {
		t.Errorf("a bad default: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("gpuslice.vram", "4G", "gpuslice.ttl", "1h")
	f.Add("gpuslice.vram."+uuid, "50%", "gpuslice.pool", "a")
	f.Add("gpuslice.vram.0", "4096m", "gpuslice.mode", "record")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		r, err := Parse(map[string]string{k1: v1, k2: v2}, nil, Policy{})
		if err != nil {
			checkSentence(t, err)
			return
		}
		for _, q := range r.Quotas {
			if (q.Bytes == 0) == (q.Percent == 0) || q.Percent > 100 {
				t.Errorf("%q=%q %q=%q: quota %+v", k1, v1, k2, v2, q)
			}
		}
		if len(r.Quotas) == 0 && len(r.Pools) == 0 && r.Mode != api.Record || r.TTL < 0 || len(r.Pools.String()) > 63 || len(r.Tenant) > 63 {
			t.Errorf("%q=%q %q=%q: %+v", k1, v1, k2, v2, r)
		}
	})
}

func TestAPoolIsAQuotaToo(t *testing.T) {
	for _, policy := range []Policy{{}, {DefaultVRAM: "2G"}, {Pass: true}, {DefaultVRAM: "2G", AllowEnv: true}} {
		got, err := Parse(map[string]string{"gpuslice.pool": "llm"}, []string{"GPUSLICE_VRAM=1G"}, policy)
		if err != nil || len(got.Quotas) != 0 || got.Pools.String() != "llm" {
			t.Errorf("%+v: %+v, %v", policy, got, err)
		}
	}
}
