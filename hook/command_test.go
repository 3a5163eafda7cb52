// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/annotations"
)

func TestACommandLineGrantsPools(t *testing.T) {
	for line, want := range map[string]Command{
		"prestart": {Stage: "prestart", Config: api.DefaultConfig},
		"--pool a --config c --tenant t --pool b createRuntime": {Stage: "createRuntime", Config: "c",
			Grant: annotations.Grant{Pools: api.PoolNames{"a", "b"}, Tenant: "t"}},
		"--pool a --unknown b prestart": {Config: api.DefaultConfig, Grant: annotations.Grant{Pools: api.PoolNames{"a"}}},
		"--pool":                        {Stage: "--pool", Config: api.DefaultConfig},
	} {
		if got := ParseCommand(strings.Fields(line)); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

// claimed returns a bundle such as containerd writes for claims; each line is the command line of a hook.
func claimed(t *testing.T, keys map[string]string, lines ...string) Bundle {
	t.Helper()
	var hooks []specs.Hook
	for _, line := range lines {
		path, _, _ := strings.Cut(line, " ")
		hooks = append(hooks, specs.Hook{Path: "/opt/" + path, Args: strings.Fields(line)})
	}
	text, err := json.Marshal(map[string]any{
		"root": map[string]any{"path": "r"}, "annotations": keys, "process": map[string]any{"env": []string{"GPUSLICE_VRAM=9G"}},
		"hooks": map[string]any{"prestart": hooks[:1], "createRuntime": hooks[1:]},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseBundle("/b/config.json", text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestClaimTakesPrecedenceOverAnnotationsAndEnvironment(t *testing.T) {
	for _, policy := range []annotations.Policy{{}, {Pass: true}, {DefaultVRAM: "2G", AllowEnv: true}} {
		b := claimed(t, nil, "gpuslice-hook --pool a --tenant t prestart", "gpuslice-hook --pool b --pool a createRuntime", "gpuslice-hook prestart", "other --pool c prestart")
		r, err := b.Request(policy)
		if err != nil || !slices.Equal(r.Pools, api.PoolNames{"a", "b"}) || r.Tenant != "t" || len(r.Quotas) != 0 || r.Mode != api.Enforce {
			t.Errorf("%+v: %+v, %v", policy, r, err)
		}
		b = claimed(t, map[string]string{annotations.VRAM: "1G", annotations.TTL: "1h", annotations.Tenant: "t"}, "gpuslice-hook --pool a --tenant t prestart")
		r, err = b.Request(policy)
		if err != nil || len(r.Quotas) != 1 || r.Quotas[0].Bytes != 1<<30 || r.TTL != time.Hour || !slices.Equal(r.Pools, api.PoolNames{"a"}) {
			t.Errorf("%+v: an annotation with less: %+v, %v", policy, r, err)
		}
		for key, value := range map[string]string{
			annotations.Pool: "mine", annotations.Mode: "record", annotations.Tenant: "others", annotations.VRAM: "lots", "gpuslice.cdi": "x",
		} {
			b := claimed(t, map[string]string{key: value}, "gpuslice-hook --pool a --tenant t prestart")
			if r, err := b.Request(policy); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s=%s: %+v, %v", key, value, r, err)
			}
		}
	}
	b := claimed(t, nil, "gpuslice-hook --pool a --tenant t prestart", "gpuslice-hook --pool b --tenant u prestart")
	if _, err := b.Request(annotations.Policy{}); err == nil || !strings.Contains(err.Error(), "tenants t and u") {
		t.Error(err)
	}
}

// A wrapper may add a hook that the bundle does not list.
func TestTheHooksOwnCommandLineGrantsToo(t *testing.T) {
	b := claimed(t, nil, "other prestart")
	b.Own = annotations.Grant{Pools: api.PoolNames{"a"}}
	if r, err := b.Request(annotations.Policy{}); err != nil || !slices.Equal(r.Pools, api.PoolNames{"a"}) {
		t.Error(r, err)
	}
}

func TestSliceOfAnotherHookOfTheContainerIsUsed(t *testing.T) {
	state := specs.State{ID: "c", Pid: 7}
	for _, c := range []struct {
		slice api.Slice
		is    bool
	}{
		{api.Slice{PID: 7, Pools: api.PoolNames{"b", "a"}}, true},
		{api.Slice{PID: 7, Pools: api.PoolNames{"a"}}, false},
		{api.Slice{PID: 7}, false},
		{api.Slice{PID: 8, Pools: api.PoolNames{"a", "b"}}, false}, // of an earlier container with the same id
	} {
		h := &Hook{Enforcer: &fake{slice: c.slice}}
		if got := h.alreadyRegistered(t.Context(), state, api.PoolNames{"a", "b"}); got != c.is {
			t.Errorf("%+v: %t", c.slice, got)
		}
	}
}
