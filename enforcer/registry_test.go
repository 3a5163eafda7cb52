// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"strconv"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/members"
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

// A released slice may leave the registry after another has its id and its cgroup.
func TestTheEndOfAFormerSliceLeavesTheNextOneOfItsID(t *testing.T) {
	r := newRegistry()
	var slices [2]*slice
	for i := range slices {
		slices[i] = &slice{request: api.RegisterRequest{ID: "c"}, group: &members.Group{ID: "c"}}
		r.enter(slices[i])
	}
	former, next := slices[0], slices[1]
	r.strike(former)
	expect.True(t, r.has(next) && r.of(r.members.At(next.group.Cgroup)) == next, "the next slice is struck out")
	r.strike(next)
	expect.Equal(t, len(r.slices), 0, "slices")
}
