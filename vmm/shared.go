// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"fmt"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// Shared is physical memory shared by several models. Each model has its own addresses; memory that one unmaps, the others
// can map. All have the same page size and share one cache.
type Shared struct {
	store  *store
	models map[string]*Pool // guarded by the device's lock
}

// NewShared makes a Shared that holds at most limit bytes, mapped and cached together. Limit 0 leaves the limit to the
// driver: the slice's quota, or that of the gpuslice pool shared by several containers.
func (d *Device) NewShared(limit uint64, o Options) (*Shared, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.newStore(limit, o)
	if err != nil {
		return nil, fmt.Errorf("vmm: new shared pool: %w", err)
	}
	return &Shared{store: s, models: make(map[string]*Pool)}, nil
}

// Register reserves addresses for a model, as [Device.NewPool] does. It returns [ErrModelExists] if the name is taken.
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

// Unregister unmaps all memory of the model and frees its addresses.
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

// Map is [Pool.Map] for a model. It returns a [*MemoryError] beyond the limit.
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

// Base returns the address of the model's offset 0.
func (s *Shared) Base(model string) (cuda.Address, error) {
	s.store.device.mu.Lock()
	defer s.store.device.mu.Unlock()
	p, err := s.model(model)
	if err != nil {
		return 0, fmt.Errorf("vmm: base of model %q: %w", model, err)
	}
	return p.Base(), nil
}

// IsMapped is [Pool.IsMapped] for a model. It returns false for an unknown model.
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

// SetLimit changes the limit in bytes; 0 is as in [Device.NewShared]. Cached memory beyond the limit is released. Mapped
// memory stays, and Map fails until less than the limit is mapped.
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

// SharedStats is a snapshot of a Shared. Sizes are in bytes.
type SharedStats struct {
	// Limit is the maximum of physical memory, and Current its use: by this Shared if the limit is its own, otherwise by all
	// processes that share the quota or the device.
	Limit, Current uint64
	MappedBytes    uint64
	CachedBytes    uint64
	HighWater      uint64           // peak of mapped bytes
	Models         map[string]Stats // CachedPages counts the pages left mapped in each
}

// Stats returns the figures of all models together, and of each.
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

// Close unregisters all models and releases cached memory. Closing again does nothing.
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
