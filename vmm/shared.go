// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"fmt"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Shared is one amount of physical memory for several models. Each has addresses for a capacity of its own; what one unmaps, the
// others can map. All have the same page size and one cache.
type Shared struct {
	store  *store
	models map[string]*Pool // guarded by the device's lock
}

// NewShared makes one with that limit of bytes mapped and cached at a time. With limit 0 it has none of its own: the limit is the
// slice's quota, or that of the gpuslice pool which the processes of several containers share, as the driver reports it.
func (d *Device) NewShared(limit uint64, o Options) (*Shared, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.newStore(limit, o)
	if err != nil {
		return nil, fmt.Errorf("vmm: new shared pool: %w", err)
	}
	return &Shared{store: s, models: make(map[string]*Pool)}, nil
}

// Register reserves addresses for a model, as [Device.NewPool] does. [ErrModelExists]: the name is taken.
func (s *Shared) Register(model string, capacity uint64) error {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	if err := s.register(model, capacity); err != nil {
		return fmt.Errorf("vmm: register model %q: %w", model, err)
	}
	return nil
}

func (s *Shared) register(model string, capacity uint64) error {
	if s.store.closed {
		return ErrClosed
	}
	if s.models[model] != nil {
		return ErrModelExists
	}
	p, err := s.store.newPool(capacity)
	if err == nil {
		s.models[model] = p
	}
	return err
}

// Unregister unmaps all of the model's memory and gives back its addresses.
func (s *Shared) Unregister(model string) error {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	if err := s.unregister(model); err != nil {
		return fmt.Errorf("vmm: unregister model %q: %w", model, err)
	}
	return nil
}

func (s *Shared) unregister(model string) error {
	p, err := s.model(model)
	if err != nil {
		return err
	}
	delete(s.models, model)
	return p.close()
}

// Map is [Pool.Map] for a model. Beyond the limit the error is a [*MemoryError].
func (s *Shared) Map(model string, offset, size uint64) (cuda.Address, error) {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	p, err := s.model(model)
	var address cuda.Address
	if err == nil {
		address, err = p.mapRange(offset, size)
	}
	if err != nil {
		return 0, fmt.Errorf("vmm: map in model %q: %w", model, err)
	}
	return address, nil
}

// Unmap is [Pool.Unmap] for a model.
func (s *Shared) Unmap(model string, offset, size uint64) error {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	p, err := s.model(model)
	if err == nil {
		err = p.unmapRange(offset, size)
	}
	if err != nil {
		return fmt.Errorf("vmm: unmap in model %q: %w", model, err)
	}
	return nil
}

// Base is the address of the model's offset 0.
func (s *Shared) Base(model string) (cuda.Address, error) {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	p, err := s.model(model)
	if err != nil {
		return 0, fmt.Errorf("vmm: base of model %q: %w", model, err)
	}
	return p.Base(), nil
}

// IsMapped is [Pool.IsMapped] for a model; false for one that is not registered.
func (s *Shared) IsMapped(model string, offset, size uint64) bool {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	p, err := s.model(model)
	return err == nil && p.isMapped(offset, size)
}

func (s *Shared) model(name string) (*Pool, error) {
	if s.store.closed {
		return nil, ErrClosed
	}
	p := s.models[name]
	if p == nil {
		return nil, ErrModelNotFound
	}
	return p, nil
}

// SetLimit changes the limit of bytes; 0 is as for [Device.NewShared]. What is cached beyond it is given back. What is mapped
// stays, and nothing more is mapped until it is less.
func (s *Shared) SetLimit(limit uint64) error {
	st := s.store
	st.device.mu.Lock()
	defer st.device.mu.Unlock()
	err := st.broken
	if s.store.closed {
		err = ErrClosed
	}
	if err == nil {
		st.limit = limit
		_, err = st.trim(max(0, st.cached()-st.room(st.mapped)))
	}
	if err != nil {
		return fmt.Errorf("vmm: set the limit: %w", err)
	}
	return nil
}

// SharedStats are of one instant.
type SharedStats struct {
	// Limit is of physical memory, and Current what is taken of it: by the models and the cache if the limit was set here, and by
	// all who share the quota or the device if it was not.
	Limit, Current uint64
	MappedBytes    uint64
	CachedBytes    uint64
	HighWater      uint64           // the most bytes that were mapped at a time
	Models         map[string]Stats // CachedPages of each are those left mapped in it
}

// Stats of all models, and of each.
func (s *Shared) Stats() (SharedStats, error) {
	st := s.store
	st.device.mu.Lock()
	defer st.device.mu.Unlock()
	if s.store.closed {
		return SharedStats{}, fmt.Errorf("vmm: statistics: %w", ErrClosed)
	}
	stats := SharedStats{
		Limit: st.limit, Current: st.bytes(st.mapped + st.cached()),
		MappedBytes: st.bytes(st.mapped), CachedBytes: st.bytes(st.cached()), HighWater: st.bytes(st.highWater),
		Models: make(map[string]Stats, len(s.models)),
	}
	for name, p := range s.models {
		stats.Models[name] = p.stats()
	}
	if st.limit == 0 {
		free, total, err := st.device.MemoryInfo()
		if err != nil {
			return SharedStats{}, fmt.Errorf("vmm: statistics: %w", err)
		}
		stats.Limit, stats.Current = total, total-free
	}
	return stats, nil
}

// Close unregisters all models, and gives back what is cached. Closing a second time does nothing.
func (s *Shared) Close() error {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	if s.store.closed {
		return nil
	}
	if err := s.store.close(); err != nil {
		return fmt.Errorf("vmm: close shared pool: %w", err)
	}
	return nil
}
