// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"errors"
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
	// patience with the driver, which can hang: on a device that has fallen off the bus, under a reset.
	patience = 5 * time.Second
	// patienceOfProcess is less than what the asking process has with us.
	patienceOfProcess = 700 * time.Millisecond
)

// patienceOfRelease is less, since all other changes wait for a release. Tests have more.
var patienceOfRelease = 300 * time.Millisecond

var (
	errUntold = errors.New("the driver does not tell what each process holds")
)

// driverTruth is driver truth with its defects kept away from the rest: one question per device at a time, nobody
// waits longer than he wants.
type driverTruth struct {
	source  Truth
	devices []*gpu
	version string // the driver's, as it was at the start: who asks the enforcer who it is shall not wait for the driver

	mu       guard.Mutex[guard.Leaf]
	contexts map[string]uint64 // the least that a first context was seen to cost, by model and driver
}

type gpu struct {
	driver.Device
	slot driver.Slot                    // taken while the driver is asked about this device
	who  *driver.Shared[map[int]uint64] // which processes hold how much of it
	// exits says that a process has exited for whom the driver may hold memory here.
	exits chan struct{}

	begin    time.Time     // what is in answer is counted from
	answer   atomic.Int64  // when the driver last said who holds what, or nobody needed to know
	failures atomic.Uint64 // questions that it did not answer

	mu        guard.Mutex[guard.Leaf]
	occupancy occupancy
	busy      busy
	failing   bool
	learned   bool // the model's cost of a context is not published yet
	storing   bool // what was published is being stored
}

func (e *Enforcer) openTruth() error {
	if e.options.Truth == nil {
		e.log.Warn("no driver truth: hidden memory and the driver's own are not detected, a context is charged with the configured figure, and admission does not know the devices' capacity",
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

// processes asks the driver what each process holds on a device. What it returns others have, too.
func (t *driverTruth) processes(g *gpu, patience time.Duration) (map[int]uint64, error) {
	return g.who.Ask(patience)
}

// tells says whether the driver has told lately what each process holds on a device.
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

// costs says of what a context's cost is learned: a model of device with a version of the driver; "" if the device has no name.
func (t *driverTruth) costs(g *gpu) string {
	if g.Name == "" {
		return ""
	}
	return g.Name + ", driver " + t.version
}

// learned is what a first context is known to cost on a device; 0 if that is not known yet.
func (t *driverTruth) learned(g *gpu) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contexts[t.costs(g)]
}

// ContextBytes is the quota's: what a process of the slice charges before its first context on a device. With driver truth that is 0 until
// one was seen on such a device: then the process charges a guess, or all that is left if that is less, and settles it once the context is
// there (hook_context.c). It is learned from what some process shows, so it is never more than the slice and its pool may have: where
// nothing is charged yet, nobody's figure refuses a first context. Called with mu held.
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

// setContexts writes what first contexts cost into the slice's ledger.
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

// learn notes what a first context cost. The least that was seen with the driver's version counts: a process can show as much more as it
// likes, and every slice's next process charges it.
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

// publish writes what was learned to all ledgers and to the store: from the sampler's own loop, so that
// processes that come and go quickly cannot keep the disk busy, and once at a time. It does not wait for the disk.
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

// tellTruth answers a process that has made a context or loaded code, and learns from its first context what one costs. Later
// it is told what it has to charge itself: what the enforcer has charged for it is not in that.
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
	all, err := s.e.truth.processes(g, patienceOfProcess)
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
		// What it asked for beside the context; it was charged before or while the driver was asked.
		asked := max(before, after) - min(context, max(before, after))
		if bytes > asked {
			// At once for this slice's next process; publish tells the others.
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

// onDevice finds a process's lane and what it holds on one of the ledger's devices.
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
