// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// card is one in the cluster.
type card struct{ node, device string }

// ledger adds up what allocations give of each card. It is told of every change of a claim in the order in which the API server made them,
// so that no instant is left out.
type ledger struct {
	claims map[string]map[card]uint64 // by UID
	cards  map[card]uint64
	most   uint64   // that a card ever had to give at once, bytes
	over   []string // each time that a card had to give more than it has
}

func newLedger() *ledger {
	return &ledger{claims: make(map[string]map[card]uint64), cards: make(map[card]uint64)}
}

// set is told what a claim has now: nothing, once it is not allocated or gone.
func (l *ledger) set(uid, version string, has map[card]uint64) {
	for c, bytes := range l.claims[uid] {
		l.cards[c] -= bytes
		if l.cards[c] == 0 {
			delete(l.cards, c)
		}
	}
	delete(l.claims, uid)
	if len(has) == 0 {
		return
	}
	l.claims[uid] = has
	for c, bytes := range has {
		l.cards[c] += bytes
		l.most = max(l.most, l.cards[c])
		if l.cards[c] > cardBytes {
			l.over = append(l.over, fmt.Sprintf("at version %s: %d bytes of card %s of %s", version, l.cards[c], c.device, c.node))
		}
	}
}

// allocated is what a claim's allocation gives.
func allocated(claim *resourceapi.ResourceClaim) map[card]uint64 {
	if claim.Status.Allocation == nil {
		return nil
	}
	has := make(map[card]uint64)
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == config.Driver {
			q := r.ConsumedCapacity[inventory.Memory]
			has[card{r.Pool, r.Device}] += uint64(q.Value())
		}
	}
	return has
}

// packing says on how many cards claims are, and on how many they could be.
type packing struct {
	Claims  int     `json:"claims"`
	Load    float64 `json:"load"`     // of all cards' memory
	Touched int     `json:"touched"`  // cards with a claim
	OnNodes int     `json:"on_nodes"` // that best-fit decreasing touches, if each claim stays on its node
	Best    int     `json:"best"`     // that best-fit decreasing touches in the cluster
	Least   int     `json:"least"`    // below which no packing can be
}

func (l *ledger) packing(cards int) packing {
	var all []uint64
	var sum uint64
	nodes := make(map[string][]uint64)
	for _, has := range l.claims {
		for c, bytes := range has {
			nodes[c.node] = append(nodes[c.node], bytes)
			all = append(all, bytes)
			sum += bytes
		}
	}
	p := packing{
		Claims: len(l.claims), Load: float64(sum) / float64(cards) / cardBytes, Touched: len(l.cards), Best: bestFitDecreasing(all), Least: leastCards(all),
	}
	for sizes := range maps.Values(nodes) {
		p.OnNodes += bestFitDecreasing(sizes)
	}
	return p
}

// bestFitDecreasing is on how many cards it puts claims of these sizes: the largest first, each where least is left over.
func bestFitDecreasing(sizes []uint64) int {
	sizes = slices.Clone(sizes)
	slices.SortFunc(sizes, func(a, b uint64) int { return cmp.Compare(b, a) })
	var free []uint64 // of each card, ordered
	for _, size := range sizes {
		i := sort.Search(len(free), func(i int) bool { return free[i] >= size })
		left := cardBytes - size
		if i < len(free) {
			left = free[i] - size
			free = slices.Delete(free, i, i+1)
		}
		at, _ := slices.BinarySearch(free, left)
		free = slices.Insert(free, at, left)
	}
	return len(free)
}

// leastCards is a number of cards below which claims of these sizes fit in no way: they have so many bytes, and no two above a half share one.
func leastCards(sizes []uint64) int {
	var sum uint64
	var large int
	for _, size := range sizes {
		sum += size
		if size > cardBytes/2 {
			large++
		}
	}
	return max(large, int((sum+cardBytes-1)/cardBytes))
}

func TestTheLedgerSeesACardThatIsOverForOneInstant(t *testing.T) {
	l := newLedger()
	a := card{"n", "gpu-0"}
	l.set("1", "10", map[card]uint64{a: 60 * gib})
	l.set("1", "11", map[card]uint64{a: 60 * gib}) // changed otherwise: it counts once
	l.set("2", "12", map[card]uint64{{"n", "gpu-1"}: 60 * gib})
	if len(l.over) != 0 {
		t.Fatalf("no card is over: %v", l.over)
	}
	l.set("3", "13", map[card]uint64{a: 20 * gib})
	l.set("1", "14", nil)
	if len(l.over) != 1 || l.most != 80*gib || l.cards[a] != 20*gib {
		t.Errorf("over %v, most %d, now %d", l.over, l.most, l.cards[a])
	}
	if p := l.packing(8); p.Claims != 2 || p.Touched != 2 || p.OnNodes != 2 || p.Least != 2 {
		t.Errorf("packing %+v", p)
	}
}

func TestBestFitDecreasingIsNeverBelowTheBound(t *testing.T) {
	for _, c := range []struct {
		sizes       []uint64 // GiB
		best, least int
	}{
		{nil, 0, 0},
		{[]uint64{79}, 1, 1},
		{[]uint64{10, 40, 39, 69}, 2, 2},
		{[]uint64{40, 40, 40}, 3, 3},                 // by the halves
		{[]uint64{50, 18, 30, 30, 28}, 2, 2},         // it finds what first fit in this order would not
		{[]uint64{27, 27, 27, 27, 27, 27, 27}, 4, 3}, // two to a card, which bytes alone do not say
	} {
		for i := range c.sizes {
			c.sizes[i] *= gib
		}
		if best, least := bestFitDecreasing(c.sizes), leastCards(c.sizes); best != c.best || least != c.least {
			t.Errorf("%v: %d and at least %d, want %d and %d", c.sizes, best, least, c.best, c.least)
		}
	}
}
