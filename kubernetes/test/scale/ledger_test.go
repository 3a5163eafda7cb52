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

type card struct{ node, device string }

// cardSums sums the allocations of each card. It receives all changes of claims in order.
type cardSums struct {
	claims      map[string]map[card]uint64 // by UID
	cards       map[card]uint64
	most        uint64   // maximum of a card at any time, bytes
	overcommits []string // each time that a card was overcommitted
}

func newCardSums() *cardSums {
	return &cardSums{claims: make(map[string]map[card]uint64), cards: make(map[card]uint64)}
}

// set records a claim's allocation, which is empty if the claim is deleted or not allocated. version, the resourceVersion, is for the report.
func (l *cardSums) set(uid, version string, has map[card]uint64) {
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
			l.overcommits = append(l.overcommits, fmt.Sprintf("at version %s: %d bytes of card %s of %s", version, l.cards[c], c.device, c.node))
		}
	}
}

// allocated returns a claim's allocation by card.
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

// packing compares the number of cards in use with that of best-fit decreasing, and with a lower bound.
type packing struct {
	Claims         int     `json:"claims"`
	Load           float64 `json:"load"`     // fraction of all memory
	Used           int     `json:"touched"`  // cards with a claim
	BestFitPerNode int     `json:"on_nodes"` // cards used by best-fit decreasing, with each claim on its node
	BestFit        int     `json:"best"`     // cards used by best-fit decreasing in the cluster
	LowerBound     int     `json:"least"`    // lower bound of any packing
}

func (l *cardSums) packing(cards int) packing {
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
		Claims: len(l.claims), Load: float64(sum) / float64(cards) / cardBytes, Used: len(l.cards), BestFit: bestFitDecreasing(all), LowerBound: leastCards(all),
	}
	for sizes := range maps.Values(nodes) {
		p.BestFitPerNode += bestFitDecreasing(sizes)
	}
	return p
}

// bestFitDecreasing returns the number of cards for claims of these sizes, if each, the largest first, goes to the fullest card on which it
// fits, or else to a new one.
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

// leastCards returns a lower bound of the cards for claims of these sizes, by their sum, and by the claims above half a card.
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

func TestCardSumsFindAShortOvercommit(t *testing.T) {
	l := newCardSums()
	a := card{"n", "gpu-0"}
	l.set("1", "10", map[card]uint64{a: 60 * gib})
	l.set("1", "11", map[card]uint64{a: 60 * gib}) // another change of the same allocation counts once
	l.set("2", "12", map[card]uint64{{"n", "gpu-1"}: 60 * gib})
	if len(l.overcommits) != 0 {
		t.Fatalf("no card is over: %v", l.overcommits)
	}
	l.set("3", "13", map[card]uint64{a: 20 * gib})
	l.set("1", "14", nil)
	if len(l.overcommits) != 1 || l.most != 80*gib || l.cards[a] != 20*gib {
		t.Errorf("over %v, most %d, now %d", l.overcommits, l.most, l.cards[a])
	}
	if p := l.packing(8); p.Claims != 2 || p.Used != 2 || p.BestFitPerNode != 2 || p.LowerBound != 2 {
		t.Errorf("packing %+v", p)
	}
}

func TestBestFitDecreasingIsAtLeastTheLowerBound(t *testing.T) {
	for _, c := range []struct {
		sizes       []uint64 // GiB
		best, least int
	}{
		{nil, 0, 0},
		{[]uint64{79}, 1, 1},
		{[]uint64{10, 40, 39, 69}, 2, 2},
		{[]uint64{40, 40, 40}, 3, 3},                 // by the number above a half
		{[]uint64{50, 18, 30, 30, 28}, 2, 2},         // better than first fit in this order
		{[]uint64{27, 27, 27, 27, 27, 27, 27}, 4, 3}, // two on each card, although the sum allows fewer cards
	} {
		for i := range c.sizes {
			c.sizes[i] *= gib
		}
		if best, least := bestFitDecreasing(c.sizes), leastCards(c.sizes); best != c.best || least != c.least {
			t.Errorf("%v: %d and at least %d, want %d and %d", c.sizes, best, least, c.best, c.least)
		}
	}
}
