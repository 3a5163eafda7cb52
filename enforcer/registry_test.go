// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestThereAreNoMorePoolsThanTheLimit(t *testing.T) {
	r := newRegistry()
	claim := func(name string) error {
		_, _, err := r.claimPool(&pool{name: name})
		return err
	}
	for n := range api.MaxPools {
		name := strconv.Itoa(n)
		must.Do(t, claim(name), "pool", n)
		if n%2 == 0 {
			r.enterPool(&pool{name: name}, true)
		}
	}
	for next, leave := range map[string]func(){
		"after a deletion": func() { r.strikePool(&pool{name: "0"}) },
		"after a failure":  func() { r.enterPool(&pool{name: "1"}, false) },
	} {
		expect.ErrorIs(t, claim("more"), api.ErrBadRequest, "one more than the limit")
		leave()
		expect.NoError(t, claim(next), next)
	}
}

// A released slice may leave the registry after another has its id, its cgroup and its pid namespace.
func TestTheEndOfAFormerSliceLeavesTheNextOneInItsPlace(t *testing.T) {
	at := cgroup.Path{Mount: "/sys/fs/cgroup", Rel: "/c"}
	r := newRegistry()
	var slices [2]*slice
	for i := range slices {
		slices[i] = &slice{request: api.RegisterRequest{ID: "c"}, cgroup: at, pidNS: 1, leads: true}
		r.enter(slices[i])
	}
	former, next := slices[0], slices[1]
	r.strike(former)
	if !r.has(next) || r.byCgroup[where(at)] != next || r.byPIDNS[1] != next {
		t.Errorf("the next slice is struck out: %+v", r.slices)
	}
	r.strike(next)
	expect.Equal(t, len(r.slices)+len(r.byCgroup)+len(r.byPIDNS), 0, "the last slice stays", r.slices)
}
