// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/members"
	"github.com/gpuslice/gpuslice/test/expect"
)

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
