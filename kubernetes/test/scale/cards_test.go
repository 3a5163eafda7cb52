// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

const (
	gib = 1 << 30
	// cardBytes is the memory of a card available to claims: an H100's 81,559 MiB less a reserve.
	cardBytes    = 79 * gib
	cardsPerNode = 8
)

// grant is the memory of one card in an allocation.
type grant struct {
	device string // the device's name in Kubernetes
	bytes  uint64
}

// cards holds the cards and pools of a node. It implements package inventory's Enforcer.
type cards struct {
	mu     sync.Mutex
	cards  []api.Device // Free is copied for each answer
	free   map[string]uint64
	pools  map[string]api.Pool
	events chan api.Event
	seq    uint64
}

func newCards(node int) *cards {
	c := &cards{free: make(map[string]uint64), pools: make(map[string]api.Pool), events: make(chan api.Event, 1024)}
	for i := range cardsPerNode {
		d := api.Device{
			UUID: fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", node, i), Index: i, Name: "NVIDIA H100 80GB HBM3", Total: 81559 << 20,
			PCI: fmt.Sprintf("0000:%02x:00.0", i+1), ComputeCapability: "9.0",
		}
		c.cards = append(c.cards, d)
		c.free[d.UUID] = cardBytes
	}
	return c
}

// prepare creates a claim's pools, if the cards have enough free memory.
func (c *cards) prepare(claim string, grants []grant) error {
	c.mu.Lock()
	for i, g := range grants {
		uuid := inventory.UUID(g.device)
		if free, found := c.free[uuid]; !found || free < g.bytes {
			c.mu.Unlock()
			return fmt.Errorf("claim %s wants %d bytes of %s, which has %d free", claim, g.bytes, g.device, free)
		}
		c.free[uuid] -= g.bytes
		name := fmt.Sprintf("%s%s-%d", inventory.PoolPrefix, claim, i)
		c.pools[name] = api.Pool{Name: name, Devices: []api.PoolUse{{Device: uuid, Limit: g.bytes}}}
	}
	c.mu.Unlock()
	c.tell(api.EventPoolCreated)
	return nil
}

func (c *cards) unprepare(claim string, grants []grant) {
	c.mu.Lock()
	for i, g := range grants {
		c.free[inventory.UUID(g.device)] += g.bytes
		delete(c.pools, fmt.Sprintf("%s%s-%d", inventory.PoolPrefix, claim, i))
	}
	c.mu.Unlock()
	c.tell(api.EventPoolDeleted)
}

func (c *cards) tell(kind api.EventKind) {
	c.mu.Lock()
	c.seq++
	event := api.Event{Seq: c.seq, Kind: kind}
	c.mu.Unlock()
	c.events <- event
}

func (c *cards) Info(context.Context) (api.Info, error) {
	return api.Info{Driver: "580.159.04"}, nil
}

func (c *cards) Devices(context.Context) ([]api.Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.cards)
	for i := range all {
		free := c.free[all[i].UUID]
		all[i].Free, all[i].Pools = &free, make(map[string]uint64)
		for _, p := range c.pools {
			for _, use := range p.Devices {
				if use.Device == all[i].UUID {
					all[i].Pools[p.Name] = use.Limit
				}
			}
		}
	}
	return all, nil
}

func (c *cards) Pools(context.Context) ([]api.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.pools)), nil
}

func (c *cards) Health(context.Context) (api.Health, error) { return api.Health{}, nil }

func (c *cards) Events(ctx context.Context, _ string, _ uint64, _ bool, each func(api.Event) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-c.events:
			if err := each(event); err != nil {
				return err
			}
		}
	}
}

func TestSimulatedNodeRefusesRequestsBeyondItsCard(t *testing.T) {
	c := newCards(0xab)
	device := inventory.DeviceName(c.cards[3].UUID)
	if err := c.prepare("a", []grant{{device, 60 * gib}}); err != nil {
		t.Fatal(err)
	}
	if err := c.prepare("b", []grant{{device, 20 * gib}}); err == nil {
		t.Error("80 GiB were given of 79")
	}
	c.unprepare("a", []grant{{device, 60 * gib}})
	if err := c.prepare("b", []grant{{device, cardBytes}}); err != nil {
		t.Errorf("what was given back is not free: %v", err)
	}
	devices, _ := c.Devices(t.Context())
	if got := (inventory.Offer{}).Of(inventory.Host{Devices: devices}); len(got) != cardsPerNode || got[0].Name != device {
		t.Errorf("the fullest card is not published first: %v", got)
	}
}
