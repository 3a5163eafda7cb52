// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
)

// tellPatience limits the wait for the driver of a request by a process. Tests use a longer one.
var tellPatience = devices.ShortTimeout

// patienceOfRelease is shorter, since all other changes wait for a release. Tests use a longer one.
var patienceOfRelease = 300 * time.Millisecond

func (e *Enforcer) openTruth() (err error) {
	if e.options.Truth == nil {
		e.log.Warn("no driver truth: hidden memory and the driver's own are not detected, a context is charged at the configured size, and admission does not know the devices' capacity",
			"why", e.options.NoTruth, "bytes", e.options.ContextBytes)
		return nil
	}
	e.truth, err = devices.Open(e.options.Truth, e.store.Contexts(), func(err error) {
		e.log.Error("device cannot be read: no slice can use it", "err", err)
	})
	return err
}

// tells reports whether the driver has lately listed a device's processes.
func (e *Enforcer) tells(raw [16]byte) bool {
	g := e.truth.At(raw)
	return g != nil && g.Answers()
}

// ContextBytes is called by the quota. It returns what a process charges before its first context on a device. With driver truth this is 0 until one
// was seen on such a device: then the process charges a guess, or all that is left if that is less, and corrects it once the context exists
// (hook_context.c). The cost is learned from processes, so it is capped by the limits of the slice and its pool: no such figure refuses the first
// context of an empty slice. Called with mu held.
func (s *slice) ContextBytes(d *quota.Device) uint64 {
	if s.e.truth == nil {
		return s.e.options.ContextBytes
	}
	g := s.e.truth.At(d.UUID)
	if g == nil {
		return s.e.options.ContextBytes
	}
	_, bytes := s.e.truth.Context(g)
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

// publish writes the learned cost to all ledgers and to the store, without a wait for the disk. It is called by the sampler and stores one cost at a
// time, so that short-lived processes cannot keep the disk busy.
func (e *Enforcer) publish(g *devices.Device) {
	if !g.BeginPublish() {
		return
	}
	for _, s := range e.all() {
		s.setContexts()
	}
	e.ends.Go(func() {
		defer g.EndPublish()
		if err := e.store.PutContext(e.truth.Context(g)); err != nil {
			e.log.Error("cost of a context not persisted", "device", g.UUID, "err", err)
		}
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
	g := s.e.truth.At(raw)
	if g == nil {
		return 0, ledger.StatusUnknown
	}
	all, err := g.Processes(tellPatience)
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
			s.e.truth.Learn(g, bytes-asked)
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
