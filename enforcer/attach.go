// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/quota"
	"github.com/gpuslice/gpuslice/enforcer/report"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// answer is the slice's attach.Handler.
func (s *slice) answer(peer *process.Handle, member bool, r ledger.Request) (reply ledger.Reply, files []*os.File, ok bool) {
	kept := false
	defer func() {
		if !kept {
			peer.Close()
		}
	}()
	if s.released() { // it has no members, so every attach is answered with the reason
		if r.Op == ledger.OpAttach {
			s.reject(peer.PID, "released")
		}
		return ledger.Reply{Status: ledger.StatusClosed}, nil, true
	}
	if !member {
		return s.stranger(peer)
	}
	var err error
	switch r.Op {
	case ledger.OpAttach:
		if err = s.awaitReturn(); err == nil {
			reply, files, err = s.attach(peer)
		}
		kept = err == nil
		result := attachResult(err)
		s.e.count(func(c Counter) { c.Attached(result) })
		if err != nil && result != attachStopping && result != attachAway {
			s.reject(peer.PID, result)
		}
	case ledger.OpDevice:
		reply.Device, err = s.addDevice(r.UUID, r.Bytes)
	case ledger.OpTruth:
		reply.Bytes, err = s.tellTruth(peer, r.Device)
	case ledger.OpHost:
		if files, err = s.memory.GiveHost(peer, r.Used, r.Bytes); err == nil {
			reply.Bytes = r.Bytes
		}
	}
	switch {
	case err == nil:
		return reply, files, true
	case errors.Is(err, ErrClosed), errors.Is(err, os.ErrClosed):
		return reply, nil, false // the next enforcer answers
	}
	reply = ledger.Reply{Status: ledger.StatusInternal}
	if !errors.As(err, &reply.Status) {
		s.log.Error("request of a process failed", "pid", peer.PID, "err", err)
	}
	return reply, nil, true
}

func (s *slice) released() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quota.State == api.Released
}

// stranger answers a process outside the slice. Only the first is logged as a warning, since any process that reaches the socket can repeat this.
func (s *slice) stranger(peer *process.Handle) (ledger.Reply, []*os.File, bool) {
	s.mu.Lock()
	ended := s.quota.State == quota.Left
	level := slog.LevelDebug
	if !s.strange {
		s.strange, level = true, slog.LevelWarn
	}
	s.mu.Unlock()
	if ended {
		return ledger.Reply{}, nil, false // its members are no longer known here
	}
	s.e.count(func(c Counter) { c.Attached("stranger") })
	s.reject(peer.PID, "stranger")
	s.log.Log(context.Background(), level, "a process outside the slice tried to attach", "pid", peer.PID)
	return ledger.Reply{Status: ledger.StatusNotMember}, nil, true
}

// Results of an attach that the process repeats: the next enforcer answers it, or the slice has not returned yet.
const attachStopping, attachAway = "stopping", "away"

func attachResult(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ledger.StatusFull):
		return "full"
	case errors.Is(err, ledger.StatusClosed):
		return "closed"
	case errors.Is(err, ErrClosed):
		return attachStopping
	case errors.Is(err, ledger.StatusAway):
		return attachAway
	default:
		return "error"
	}
}

// storeLedger stores a ledger's identity before any process gets it, so that the next enforcer can find it in the process. It takes the turn of the
// quota's owner, in which it calls put.
func storeLedger(q *quota.Quota, turn *guard.Turn, refusal func() error, put func() error) error {
	stored := func() (bool, error) {
		q.Lock.Lock()
		defer q.Lock.Unlock()
		return q.Stored, refusal()
	}
	if known, err := stored(); known || err != nil {
		return err
	}
	turn.Wait()
	defer turn.Give()
	if known, err := stored(); known || err != nil {
		return err
	}
	if err := put(); err != nil {
		return err
	}
	q.Lock.Lock()
	defer q.Lock.Unlock()
	q.Stored = true
	return nil
}

func (s *slice) storeLedger() error {
	return storeLedger(s.quota, s.turn, s.refusal, func() error {
		record := s.storedNow()
		record.Ledger = store.Ledger(s.quota.Identity)
		if err := s.e.store.PutSlice(record); err != nil {
			return err
		}
		killpoint.Pass("attach.stored")
		return nil
	})
}

// attach gives the process a lane and the ledger, and the same in each pool.
func (s *slice) attach(peer *process.Handle) (reply ledger.Reply, files []*os.File, err error) {
	who := report.Process{PID: peer.PID, Command: process.Name(peer.PID)}
	var inPools []*quota.Lane // not attached yet: their handles are closed on return
	defer func() {
		for _, l := range inPools {
			l.Process.Close()
		}
	}()
	for _, p := range s.pools {
		if err := p.storeLedger(); err != nil {
			return reply, nil, err
		}
		again, err := process.Again(peer.PID, peer.Start)
		if errors.Is(err, process.ErrDead) {
			return reply, nil, ledger.StatusNotMember
		}
		if err != nil {
			return reply, nil, err
		}
		inPools = append(inPools, &quota.Lane{Process: again, Refusals: who, Slice: s.id()})
	}
	if err := s.storeLedger(); err != nil {
		return reply, nil, err
	}
	s.memory.BeganAnew(peer)
	l := &quota.Lane{Process: peer, Refusals: who, Attached: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.refusal()
	if err == nil && s.suspension != nil {
		err = ledger.StatusClosed
		if s.request.Elastic {
			err = ledger.StatusAway
		}
	}
	if err != nil {
		return reply, nil, err
	}
	file, err := s.quota.Attach(l)
	if err != nil {
		return reply, nil, err
	}
	files = []*os.File{file}
	for i, p := range s.pools {
		file, err := p.attach(inPools[0])
		if err != nil {
			for _, p := range s.pools[:i] {
				p.settle(peer.PID)
			}
			for _, file := range files {
				file.Close()
			}
			s.quota.Withdraw(l)
			return ledger.Reply{}, nil, err
		}
		files, reply.PoolLanes[i], inPools = append(files, file), inPools[0].Number, inPools[1:]
	}
	if s.request.Elastic && s.e.options.Elastic.Remap {
		s.quota.Ledger.SetWant(l.Number, ledger.Running) // the process is to move its memory itself, if it can
	}
	s.log.Debug("process attached", "pid", peer.PID, "lane", l.Number)
	reply.Lane, reply.Size = l.Number, ledger.Size
	return reply, files, nil
}

// refusal returns why the slice's processes get nothing; nil if they do. Called with mu held.
func (s *slice) refusal() error {
	if s.closing {
		return ledger.StatusClosed
	}
	return refusal(s.quota)
}

// refusal returns why processes get nothing from a quota: a ledger.Status, or ErrClosed; nil if they do. Called with its lock held.
func refusal(q *quota.Quota) error {
	switch q.State {
	case api.Active:
		return nil
	case quota.Left:
		return ErrClosed
	default:
		return ledger.StatusClosed
	}
}

// addDevice finds or adds a device of the ledger. The process reports its UUID and size; with driver truth, the size is the driver's. If the slice
// cannot be granted its quota there, the limit is 0.
func (s *slice) addDevice(raw [16]byte, total uint64) (uint32, error) {
	uuid := driver.UUID{Raw: raw}
	if s.e.truth != nil {
		known := s.e.truth.At(raw)
		if known == nil {
			return 0, ledger.StatusNoDevice
		}
		total = known.Total
		uuid, _ = driver.ParseUUID(known.UUID)
	}
	if index, err := s.hasDevice(raw); index >= 0 || err != nil {
		return uint32(max(index, 0)), err
	}
	s.turn.Wait()
	defer s.turn.Give()
	index, err := s.hasDevice(raw)
	if index >= 0 || err != nil { // added in between
		return uint32(max(index, 0)), err
	}
	limit, err := mayAdd(s.quota, total, func() (uint64, bool) { return s.allowed(raw, total) })
	if err != nil {
		return 0, err
	}
	if p := s.poolOn(raw); p != nil { // first: a process that finds it in the slice looks for it there
		if err := p.addDevice(uuid, total); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	if s.totals == nil {
		s.totals = make(map[[16]byte]uint64)
	}
	s.totals[raw] = total
	s.mu.Unlock()
	err = s.e.command(s, func(client uint64) core.Command {
		return core.UseDevice{Client: client, ID: s.id(), Device: uuid.String(), Bytes: limit}
	})
	if errors.Is(err, api.ErrQuotaExceeded) { // the device is in the ledger, with a limit of 0
		s.log.Warn("slice uses a device on which it has no quota", "device", uuid, "err", err)
	} else if err != nil {
		return 0, err
	}
	if index, err = s.hasDevice(raw); err != nil {
		return 0, err
	}
	s.followNative()
	s.log.Info("device added to the slice", "device", uuid, "bytes", limit)
	return uint32(index), nil
}

// mayAdd returns the bytes that a quota may have on another device, of total bytes, or the ledger.Status of its refusal. Called in the turn of the
// quota's owner; limit is called with the lock held.
func mayAdd(q *quota.Quota, total uint64, limit func() (uint64, bool)) (uint64, error) {
	q.Lock.Lock()
	defer q.Lock.Unlock()
	bytes, ok := limit()
	switch {
	case !ok:
		return 0, ledger.StatusNoDevice
	case total == 0 || bytes == 0:
		return 0, ledger.StatusMalformed
	case len(q.Devices) == ledger.Devices:
		return 0, ledger.StatusFull
	}
	return bytes, nil
}

// hasDevice returns the ledger's index of a device; -1 if it lacks it, and an error if the slice's processes get nothing.
func (s *slice) hasDevice(raw [16]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return -1, err
	}
	return s.quota.Index(raw), nil
}
