// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/simulated"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

func TestMain(m *testing.M) { os.Exit(simulated.Run(m, "..")) }

const (
	mib = 1 << 20
	gib = 1 << 30
)

// settle keeps a context open during all tests on a card, and waits until the context's memory is charged to the slice.
var settle = sync.OnceValue(func() error {
	if os.Getenv(simulated.OnCard) == "" {
		return nil
	}
	d, err := Open(0)
	var before uint64
	for since := time.Now(); err == nil && time.Since(since) < 5*time.Second; {
		var free uint64
		if free, _, err = d.MemoryInfo(); free != before {
			since, before = time.Now(), free
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
})

func open(t testing.TB) *Device {
	t.Helper()
	must(t, settle())
	d, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	before := used(t, d)
	t.Cleanup(func() {
		if now := used(t, d); !t.Failed() && now != before {
			t.Errorf("%d bytes are left on the card", now-before)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func used(t testing.TB, d *Device) uint64 {
	t.Helper()
	free, total, err := d.MemoryInfo()
	if err != nil {
		t.Fatal(err)
	}
	return total - free
}

func newPool(t testing.TB, d *Device, capacity uint64, o Options) *Pool {
	t.Helper()
	p, err := d.NewPool(capacity, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func newShared(t testing.TB, d *Device, limit uint64, o Options) *Shared {
	t.Helper()
	s, err := d.NewShared(limit, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustMap(t testing.TB, p *Pool, offset, size uint64) {
	t.Helper()
	address, err := p.Map(offset, size)
	must(t, err)
	if address != p.Base()+cuda.Address(offset) {
		t.Fatalf("offset %d is mapped at %#x, but the base is %#x", offset, address, p.Base())
	}
}
