// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/api"
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
		{"absent", nil, []string{"GPUSLICE_VRAMS=2G", "gpuslice_vram=2G", "GPUSLICE_VRAM"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(8 << 30)},
		{"not allowed", nil, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G"}, size(8 << 30)},
		{"not allowed, nonsense", nil, []string{"GPUSLICE_VRAM=much"}, Policy{DefaultVRAM: "8G"}, size(8 << 30)},
		{"an annotation goes before it", annotated, []string{"GPUSLICE_VRAM=2G"}, Policy{DefaultVRAM: "8G", AllowEnv: true}, size(9 << 30)},
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

func TestWhoseVariableIsNotReadIsToldWhy(t *testing.T) {
	_, err := Parse(nil, []string{"GPUSLICE_VRAM=2G"}, Policy{})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "allow_env") || !strings.Contains(err.Error(), VRAM+"=4G") {
		t.Errorf("refused with %v", err)
	}
	if _, err = Parse(nil, []string{"PATH=/bin"}, Policy{}); !errors.Is(err, ErrMissing) || strings.Contains(err.Error(), "allow_env") {
		t.Errorf("without the variable, refused with %v", err)
	}
}

func FuzzEnv(f *testing.F) {
	f.Add("2G", "8G")
	f.Add("10%", "50%")
	f.Add("9G", "8G")
	f.Fuzz(func(t *testing.T, value, most string) {
		most = strings.ToValidUTF8(most, "")
		limit, err := quota(api.AllDevices, most)
		if err != nil {
			return
		}
		r, err := Parse(nil, []string{"GPUSLICE_VRAM=" + value}, Policy{DefaultVRAM: most, AllowEnv: true})
		if err != nil {
			if len(most) < 64 {
				checkSentence(t, err)
			}
			return
		}
		if q := r.Quotas[0]; q.Bytes > limit.Bytes || q.Percent > limit.Percent || (q.Bytes == 0) == (q.Percent == 0) {
			t.Errorf("%q of %q: %+v", value, most, q)
		}
	})
}
