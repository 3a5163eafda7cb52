// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

func TestTheVariableAsksForLessThanTheDefault(t *testing.T) {
	size := func(bytes uint64) []api.Quota { return []api.Quota{{Device: api.AllDevices, Bytes: bytes}} }
	share := func(percent uint32) []api.Quota { return []api.Quota{{Device: api.AllDevices, Percent: percent}} }
	annotated := map[string]string{"gpuslice.vram": "9G"}
	one := map[string]string{"gpuslice.vram.0": "9G"}
	other := map[string]string{"gpuslice.tenant": "alice"}
	for _, c := range []struct {
		name   string
		all    map[string]string
		env    []string
		policy Policy
		want   []api.Quota
	}{
		{"less", nil, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(2 << 30)},
		{"as much", nil, []string{"GPUSLICE_VRAM=8192m"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(8 << 30)},
		{"a share", nil, []string{"GPUSLICE_VRAM=10%"}, Policy{DefaultVRAM: "50%", AllowEnv: true}, share(10)},
		{"beside another annotation", other, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(2 << 30)},
		{"the last of several", nil, []string{"GPUSLICE_VRAM=nonsense", "A=b", "GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(2 << 30)},
		{"absent", nil, []string{"GPUSLICE_VRAM", "GPUSLICE_=", "GPUSLICE_SOCKET=/s", "GPUSLICE_SERVICE_HOST=10.0.0.1", "GPUSLICE_ttl=?"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(8 << 30)},
		{"not allowed", nil, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G"}, size(8 << 30)},
		{"not allowed, nonsense", nil, []string{"GPUSLICE_VRAM=much"}, Policy{DefaultVRAM: "8G"}, size(8 << 30)},
		{"an annotation goes before it", annotated, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(9 << 30)},
		{"the bytes of a UUID's device", nil, []string{"GPUSLICE_VRAM_" + uuid + "=1G", "GPUSLICE_VRAM=2G", "GPUSLICE_VRAM_0=3G"}, Policy{DefaultVRAM: "8G", AllowEnv: true},
			[]api.Quota{{Device: api.AllDevices, Bytes: 2 << 30}, {Device: "0", Bytes: 3 << 30}, {Device: uuid, Bytes: 1 << 30}}},
		{"of one device alone", nil, []string{"GPUSLICE_VRAM_1=10%"}, Policy{DefaultVRAM: "50%", AllowEnv: true},
			[]api.Quota{{Device: "1", Percent: 10}, {Device: api.AllDevices, Percent: 50}}},
		{"one of one device too", one, []string{"GPUSLICE_VRAM=much"}, Policy{DefaultVRAM: "8G", AllowEnv: true},
			[]api.Quota{{Device: "0", Bytes: 9 << 30}}},
	} {
		r, err := Parse(c.all, c.env, c.policy)
		if err != nil || !reflect.DeepEqual(r.Quotas, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, r, err, c.want)
		}
	}
	if r, err := Parse(nil, []string{"GPUSLICE_VRAM=2G"}, Policy{Pass: true}); r != nil || err != nil {
		t.Errorf("a container that passes: %+v, %v", r, err)
	}
}

func TestAVariableThatAsksForTooMuchIsRefusedInOneSentence(t *testing.T) {
	for _, c := range []struct {
		value, most string
		says        []string
	}{
		{"16G", "8G", []string{`GPUSLICE_VRAM="16G"`, `default_vram = "8G"`, "the most"}},
		{"8589934593", "8G", []string{`"8589934593"`, `"8G"`}},
		{"51%", "50%", []string{`GPUSLICE_VRAM="51%"`, `default_vram = "50%"`, "the most"}},
		{"1%", "8G", []string{`GPUSLICE_VRAM="1%"`, `default_vram = "8G"`, "cannot be compared"}},
		{"1G", "50%", []string{`GPUSLICE_VRAM="1G"`, `default_vram = "50%"`, "cannot be compared"}},
		{"4Q", "8G", []string{`GPUSLICE_VRAM="4Q"`, `"4096m"`, `"8G"`}},
		{"4Q", "50%", []string{`GPUSLICE_VRAM="4Q"`, `a share such as "50%"`}},
		{"500", "8G", []string{`"500m" or "500b" for bytes`}},
		{"50", "50%", []string{`a share such as "50%"`, `default_vram = "50%"`}},
		{"", "8G", []string{`GPUSLICE_VRAM=""`, `"4G"`}},
		{"0", "8G", []string{`GPUSLICE_VRAM="0"`}},
		{"-1", "8G", []string{`"-1"`}},
		{"1G\n", "8G", []string{`"1G\n"`}},
		{strings.Repeat("9", 1<<20), "8G", []string{`999"…`}},
	} {
		r, err := Parse(nil, []string{"GPUSLICE_VRAM=" + c.value}, Policy{DefaultVRAM: c.most, AllowEnv: true})
		if err == nil {
			t.Errorf("%.40q of %s is accepted: %+v", c.value, c.most, r)
			continue
		}
		checkSentence(t, err)
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%.40q of %s: %q does not say %q", c.value, c.most, err, s)
			}
		}
	}
}

var allowed = Policy{DefaultVRAM: "8G", AllowEnv: true}

func TestEachAnnotationHasAVariableThatOnlyAsksForLess(t *testing.T) {
	r, err := Parse(nil, []string{"GPUSLICE_TTL=90m", "GPUSLICE_PRIORITY=-7", "GPUSLICE_MODE=enforce", "GPUSLICE_ELASTIC=false"}, allowed)
	want := &Request{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 8 << 30}}, Mode: api.Enforce, TTL: 90 * time.Minute, Priority: -7}
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
	const image = "since an image can set a variable"
	for _, c := range []struct {
		name, value string
		says        []string
	}{
		{"GPUSLICE_POOL", "llm", []string{image, "no variable"}},
		{"GPUSLICE_POOL", "a b", []string{image}},
		{"GPUSLICE_TENANT", "physics", []string{image, "no variable"}},
		{"GPUSLICE_MODE", "record", []string{image, `"enforce"`}},
		{"GPUSLICE_MODE", "off", []string{`"enforce" and "record"`}},
		{"GPUSLICE_ELASTIC", "true", []string{image, `"false"`}},
		{"GPUSLICE_ELASTIC", "yes", []string{`"true" and "false"`}},
		{"GPUSLICE_PRIORITY", "1", []string{image, "a number from -1000 to 0"}},
		{"GPUSLICE_PRIORITY", "low", []string{"-1000 to 1000"}},
		{"GPUSLICE_TTL", "soon", []string{`"30m"`}},
		{"GPUSLICE_TTL", "1ms", []string{"from 1s to 876000h"}},
		{"GPUSLICE_VRAM_0", "9G", []string{`default_vram = "8G"`, "the most"}},
		{"GPUSLICE_VRAM_0", "1%", []string{"cannot be compared"}},
		{"GPUSLICE_VRAM_all", "1G", []string{"names no device", "GPUSLICE_VRAM_0"}},
		{"GPUSLICE_VRAM_", "1G", []string{"names no device"}},
		{"GPUSLICE_VRAMS", "1G", []string{"is unknown", "GPUSLICE_VRAM and"}},
		{"GPUSLICE_VRAM.0", "1G", []string{"is unknown"}},
		{"gpuslice_vram", "1G", []string{`"gpuslice_vram" is unknown`}},
		{"GPUSLICE_Vram", "1G", []string{"is unknown"}},
	} {
		variable := c.name + "=" + c.value
		r, err := Parse(nil, []string{variable}, allowed)
		if err == nil {
			t.Errorf("%s is accepted: %+v", variable, r)
			continue
		}
		checkSentence(t, err)
		for _, s := range append(c.says, "variable ", c.name) {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", variable, err, s)
			}
		}
		if strings.Contains(err.Error(), "annotation") {
			t.Errorf("%s: %q advises an annotation, which the engine may not pass", variable, err)
		}
		// An annotation of the quota takes precedence, and without allow_env variables are ignored.
		for _, policy := range []Policy{allowed, {DefaultVRAM: "8G"}} {
			all := map[string]string{}
			if policy.AllowEnv {
				all[VRAM] = "8G"
			}
			if r, err := Parse(all, []string{variable}, policy); err != nil || !reflect.DeepEqual(r, &Request{Quotas: want.Quotas, Mode: api.Enforce}) {
				t.Errorf("%s beside %v: %+v, %v", variable, all, r, err)
			}
		}
	}
	for _, key := range byVariable {
		if _, err := Parse(nil, []string{variableOf(key) + "=?"}, allowed); err == nil || strings.Contains(err.Error(), "unknown") {
			t.Errorf("%s has no variable: %v", key, err)
		}
	}
}

func TestAnAnnotationTakesPrecedenceOverItsVariable(t *testing.T) {
	r, err := Parse(map[string]string{TTL: "1h", Elastic: "true", Priority: "3", Tenant: "t"},
		[]string{"GPUSLICE_TTL=soon", "GPUSLICE_ELASTIC=?", "GPUSLICE_PRIORITY=5", "GPUSLICE_TENANT=u", "GPUSLICE_VRAM=1G"}, allowed)
	want := &Request{Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 1 << 30}}, Mode: api.Enforce, TTL: time.Hour, Elastic: true, Priority: 3, Tenant: "t"}
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
}

func TestAnUnreadVariableIsNamedInTheRefusal(t *testing.T) {
	_, err := Parse(nil, []string{"GPUSLICE_VRAM=2G"}, Policy{})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "allow_env") || !strings.Contains(err.Error(), VRAM+"=4G") {
		t.Errorf("refused with %v", err)
	}
	if _, err = Parse(nil, []string{"PATH=/bin"}, Policy{}); !errors.Is(err, ErrMissing) || strings.Contains(err.Error(), "allow_env") {
		t.Errorf("without the variable, refused with %v", err)
	}
}

func FuzzEnv(f *testing.F) {
	f.Add("VRAM", "2G", "8G")
	f.Add("VRAM_0", "10%", "50%")
	f.Add("VRAM", "9G", "8G")
	f.Add("POOL", "llm", "8G")
	f.Add("PRIORITY", "7", "8G")
	f.Fuzz(func(t *testing.T, name, value, most string) {
		most = strings.ToValidUTF8(most, "")
		limit, err := quota(api.AllDevices, most)
		if err != nil {
			return
		}
		r, err := Parse(nil, []string{"GPUSLICE_" + name + "=" + value}, Policy{DefaultVRAM: most, AllowEnv: true})
		if err != nil {
			if len(most) < 64 {
				checkSentence(t, err)
			}
			return
		}
		everywhere := 0
		for _, q := range r.Quotas {
			if q.Bytes > limit.Bytes || q.Percent > limit.Percent || (q.Bytes == 0) == (q.Percent == 0) {
				t.Errorf("%q=%q of %q: %+v", name, value, most, q)
			}
			if q.Device == api.AllDevices {
				everywhere++
			}
		}
		if everywhere != 1 || r.Mode != api.Enforce || r.Elastic || r.Priority > 0 || len(r.Pools) > 0 || r.Tenant != "" {
			t.Errorf("%q=%q of %q: the container has more by it: %+v", name, value, most, r)
		}
	})
}
