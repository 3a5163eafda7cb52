// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"math/rand/v2"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
)

func TestRefusalNamesTheLargestHolders(t *testing.T) {
	const many = 4096
	r := new(api.Refusal)
	var sum uint64
	for _, pid := range rand.Perm(many) {
		add(r, api.Holder{PID: pid, Used: uint64(pid), Overhead: 1})
		add(r, api.Holder{PID: -1})
		sum += uint64(pid) + 1
	}
	for i, h := range r.Holders {
		expect.Equal(t, h.PID, many-1-i, i, h)
		sum -= h.Used + h.Overhead
	}
	if len(r.Holders) != maxHolders || r.MoreCount != many-maxHolders || r.MoreBytes != sum {
		t.Errorf("%d are named, %d more hold %d, want %d", len(r.Holders), r.MoreCount, r.MoreBytes, sum)
	}
}

func BenchmarkARefusalOfManyHolders(b *testing.B) {
	for b.Loop() {
		r := new(api.Refusal)
		for pid := range 4096 {
			add(r, api.Holder{PID: pid, Used: uint64(pid), Overhead: 1})
		}
	}
}
