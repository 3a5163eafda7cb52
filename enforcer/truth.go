// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

const (
	// patience limits driver queries, since the driver can hang: under a reset, or if a device has fallen off the bus.
	patience = 5 * time.Second
	// patienceOfProcess is shorter than the timeout of the requesting process.
	patienceOfProcess = 700 * time.Millisecond
)

// tellPatience is patienceOfProcess. Tests use a longer one.
var tellPatience = patienceOfProcess

// patienceOfRelease is shorter, since all other changes wait for a release. Tests use a longer one.
var patienceOfRelease = 300 * time.Millisecond

// driverTruth keeps the driver's defects from the rest: one query per device at a time, and each caller sets its own timeout.
type driverTruth struct {
	source  Truth
	devices []*gpu
	version string // of the driver at the start, so that Info never waits for the driver

	mu       guard.Mutex[guard.Leaf]
	contexts map[string]uint64 // the least cost of a first context seen, by model and driver version
}

type gpu struct {
	driver.Device
	slot driver.Slot                    // taken during a query of this device
	who  *driver.Shared[map[int]uint64] // bytes of each process on the device
	// exits is sent to when a process exits for which the driver may hold memory here.
	exits chan struct{}

	begin    time.Time     // start of the time in answer
	answer   atomic.Int64  // when the driver last listed processes, or a list was not needed
	failures atomic.Uint64 // queries without an answer

	mu        guard.Mutex[guard.Leaf]
	occupancy occupancy
	busy      busy
	failing   bool
	learned   bool // the model's cost of a context is to be published
	storing   bool // the published cost is being stored
}

func (e *Enforcer) openTruth() error {
	if e.options.Truth == nil {
		e.log.Warn("no driver truth: hidden memory and the driver's own are not detected, a context is charged at the configured size, and admission does not know the devices' capacity",
			"why", e.options.NoTruth, "bytes", e.options.ContextBytes)
		return nil
	}
	t := &driverTruth{source: e.options.Truth}
	type answer struct {
		devices []driver.Device
		version string
	}
	found := make(chan answer, 1)
	go func() {
		devices, err := t.source.Devices()
		if err != nil {
			e.log.Error("device cannot be read: no slice can use it", "err", err)
		}
		found <- answer{devices, t.source.DriverVersion()}
	}()
	select {
	case a := <-found:
		t.version = a.version
		for _, d := range a.devices {
			slot := driver.NewSlot()
			t.devices = append(t.devices, &gpu{
				Device: d, slot: slot, exits: make(chan struct{}, 1), begin: time.Now(),
				who: &driver.Shared[map[int]uint64]{Slot: slot, Put: func() (map[int]uint64, error) { return t.source.Processes(d.UUID) }},
			})
		}
	case <-time.After(2 * patience):
		return fmt.Errorf("list the devices: %w (nvidia-smi hangs too?)", driver.ErrHangs)
	}
	t.contexts = e.store.Contexts()
	e.truth = t
	return nil
}

func (t *driverTruth) device(raw [16]byte) *gpu {
	for _, g := range t.devices {
		if g.Raw == raw {
			return g
		}
	}
	return nil
}

// processes returns the driver's bytes of each process on a device. Callers share the map.
func (t *driverTruth) processes(g *gpu, patience time.Duration) (map[int]uint64, error) {
	return g.who.Ask(patience)
}

// Processes and Free are of mover.Truth.
func (t *driverTruth) Processes(uuid string) (map[int]uint64, error) {
	return t.processes(t.gpu(uuid), patience)
}

func (t *driverTruth) Free(uuid string) (uint64, error) {
	g := t.gpu(uuid)
	if g == nil {
		return 0, fmt.Errorf("%w: %s", driver.ErrNoDevice, uuid)
	}
	used, err := driver.Ask(g.slot, patience, func() (uint64, error) { return t.source.Used(uuid) })
	return g.Total - min(g.Total, used), err
}

// tells reports whether the driver has lately listed a device's processes.
func (e *Enforcer) tells(raw [16]byte) bool {
	if e.truth == nil {
		return false
	}
	g := e.truth.device(raw)
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.failing
}

// costs returns the key of a context's cost: the device's model and the driver's version; "" if the device has no name.
func (t *driverTruth) costs(g *gpu) string {
	if g.Name == "" {
		return ""
	}
	return g.Name + ", driver " + t.version
}

// learned returns the known cost of a first context on a device; 0 if unknown.
func (t *driverTruth) learned(g *gpu) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contexts[t.costs(g)]
}

// ContextBytes is called by the quota. It returns what a process charges before its first context on a device. With driver truth this is 0 until one
// was seen on such a device: then the process charges a guess, or all that is left if that is less, and corrects it once the context exists
// (hook_context.c). The cost is learned from processes, so it is capped by the limits of the slice and its pool: no such figure refuses the first
// context of an empty slice. Called with mu held.
func (s *slice) ContextBytes(d *quota.Device) uint64 {
	if s.e.truth == nil {
		return s.e.options.ContextBytes
	}
	g := s.e.truth.device(d.UUID)
	if g == nil {
		return s.e.options.ContextBytes
	}
	bytes := s.e.truth.learned(g)
	limits := []uint64{s.limit(d)}
	if p := s.poolOn(d.UUID); p != nil {
		limits = append(limits, p.limitOn(d.UUID))
	}
	for _, limit := range limits {
		if limit > 0 {
			bytes = min(bytes, limit)
		}
	}
	return bytes
}

func (s *slice) setContexts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.Ledger == nil {
		return
	}
	for i, d := range s.quota.Devices {
		s.quota.Ledger.SetContextBytes(i, s.ContextBytes(d))
	}
}

// learn notes the cost of a first context. The least with the driver's version counts: a process can make it appear higher, and the next process of
// every slice charges it.
func (e *Enforcer) learn(g *gpu, bytes uint64) {
	model := e.truth.costs(g)
	if bytes == 0 || model == "" {
		return
	}
	e.truth.mu.Lock()
	known := e.truth.contexts[model]
	less := known == 0 || bytes < known
	if less {
		e.truth.contexts[model] = bytes
	}
	e.truth.mu.Unlock()
	if less {
		g.mu.Lock()
		g.learned = true
		g.mu.Unlock()
	}
}

// publish writes the learned cost to all ledgers and to the store, without a wait for the disk. It is called by the sampler and stores one cost at a
// time, so that short-lived processes cannot keep the disk busy.
func (e *Enforcer) publish(g *gpu) {
	g.mu.Lock()
	learned := g.learned && !g.storing
	if learned {
		g.learned, g.storing = false, true
	}
	g.mu.Unlock()
	if !learned {
		return
	}
	for _, s := range e.all() {
		s.setContexts()
	}
	e.ends.Go(func() {
		if err := e.store.PutContext(e.truth.costs(g), e.truth.learned(g)); err != nil {
			e.log.Error("cost of a context not persisted", "device", g.UUID, "err", err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.storing = false
	})
}

// tellTruth answers a process that has made a context or loaded code. From its first context it learns the cost of one. The answer is the bytes
// for the process to charge, without those that the enforcer has charged for it.
func (s *slice) tellTruth(peer *process.Handle, index uint32) (uint64, error) {
	raw, l, before, err := s.onDevice(peer, index)
	if err != nil {
		return 0, err
	}
	if s.e.truth == nil {
		return 0, ledger.StatusUnknown
	}
	g := s.e.truth.device(raw)
	if g == nil {
		return 0, ledger.StatusUnknown
	}
	all, err := s.e.truth.processes(g, tellPatience)
	if err != nil {
		return 0, ledger.StatusUnknown // the sampler logs it, once
	}
	bytes, listed := all[peer.PID]
	if !listed || bytes == driver.Unknown {
		return 0, ledger.StatusUnknown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.State == api.Active && s.quota.Has(l) && !l.Learned[index] {
		l.Learned[index] = true
		after := s.quota.Ledger.Held(int(index), l.Number)
		context := s.quota.Ledger.Context(int(index), l.Number)
		// Its allocations besides the context were charged before or during the query.
		asked := max(before, after) - min(context, max(before, after))
		if bytes > asked {
			// At once for this slice's next process; publish follows for the others.
			s.e.learn(g, bytes-asked)
			s.quota.Ledger.SetContextBytes(int(index), s.ContextBytes(s.quota.Devices[index]))
		}
	}
	bytes -= min(bytes, s.found[raw].chargedFor(peer, l)) // the process charges the rest
	if s.quota.State == api.Active && s.quota.Has(l) && bytes > s.quota.Ledger.Held(int(index), l.Number) {
		l.Told[index] = quota.Told{Number: s.quota.Ledger.Number(int(index), l.Number), At: time.Now()}
	}
	return bytes, nil
}

// onDevice returns the UUID of one of the ledger's devices, the process's lane, and the bytes that it holds there.
func (s *slice) onDevice(peer *process.Handle, index uint32) (raw [16]byte, l *quota.Lane, held uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return raw, nil, 0, err
	}
	if uint64(index) >= uint64(len(s.quota.Devices)) {
		return raw, nil, 0, ledger.StatusNoDevice
	}
	if l = s.quota.Of(peer.PID); l != nil {
		held = s.quota.Ledger.Held(int(index), l.Number)
	}
	return s.quota.Devices[index].UUID, l, held, nil
}
