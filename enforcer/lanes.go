// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report"
)

// lane is a place in the ledger that a process has.
type lane struct {
	number     uint32
	generation uint64 // of the lane, by the enforcer's own count
	process    *process.Handle
	refusals   report.Process
	attached   time.Time            // zero if that was another enforcer's doing
	learned    [ledger.Devices]bool // its first context's cost was looked at
	told       [ledger.Devices]told
	lent       bool // by a former enforcer: its process was checkpointed, and others may have taken what it is charged for
}

// told is when a process was told what the driver holds for it, to charge the rest: it has not as long as its lane has that number.
type told struct {
	number uint64
	at     time.Time
}

// isMember is the slice's attach.Member.
func (s *slice) isMember(peer *process.Handle) bool { return s.e.member(s, peer) }

// answer is the slice's attach.Handler.
func (s *slice) answer(peer *process.Handle, member bool, r ledger.Request) (reply ledger.Reply, files []*os.File, ok bool) {
	kept := false
	defer func() {
		if !kept {
			peer.Close()
		}
	}()
	if s.released() { // then it has no members, and whoever asks is told why he gets nothing
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
		reply, files, err = s.attach(peer)
		kept = err == nil
		result := attachResult(err)
		s.e.count(func(c Counter) { c.Attached(result) })
		if err != nil && result != attachStopping {
			s.reject(peer.PID, result)
		}
	case ledger.OpDevice:
		reply.Device, err = s.addDevice(r.UUID, r.Bytes)
	case ledger.OpTruth:
		reply.Bytes, err = s.tellTruth(peer, r.Device)
	case ledger.OpSuspend:
		err = s.suspend(peer, r.Bytes)
	case ledger.OpResume:
		err = s.resume(peer, r.Bytes)
	}
	switch {
	case err == nil:
		return reply, files, true
	case errors.Is(err, ErrClosed), errors.Is(err, os.ErrClosed):
		return reply, nil, false // the next enforcer answers
	}
	reply = ledger.Reply{Status: ledger.StatusInternal}
	if !errors.As(err, &reply.Status) {
		s.log.Error("answer a process of the slice", "pid", peer.PID, "err", err)
	}
	return reply, nil, true
}

func (s *slice) released() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == api.Released
}

// stranger answers a process that is not of the slice. It is said once in full view: whoever can reach the
// socket can ask as often as it likes.
func (s *slice) stranger(peer *process.Handle) (ledger.Reply, []*os.File, bool) {
	s.mu.Lock()
	ended := s.state == left
	level := slog.LevelDebug
	if !s.strange {
		s.strange, level = true, slog.LevelWarn
	}
	s.mu.Unlock()
	if ended {
		return ledger.Reply{}, nil, false // its members are not known here any more
	}
	s.e.count(func(c Counter) { c.Attached("stranger") })
	s.reject(peer.PID, "stranger")
	s.log.Log(context.Background(), level, "a process that is not of the slice asked for a place in its ledger", "pid", peer.PID)
	return ledger.Reply{Status: ledger.StatusNotMember}, nil, true
}

// attachStopping is of a process that is answered by the next enforcer.
const attachStopping = "stopping"

// attachResult is an error of attach as one of few words.
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
	default:
		return "error"
	}
}

// noteLedger has the store know the ledger before any process gets it: by that the next enforcer finds it, in the process.
func (s *slice) noteLedger() error {
	noted := func() (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.noted, s.refusal()
	}
	if known, err := noted(); known || err != nil {
		return err
	}
	s.turn.Wait()
	defer s.turn.Give()
	if known, err := noted(); known || err != nil {
		return err
	}
	record := s.storedNow()
	record.LedgerName, record.LedgerDev, record.LedgerInode = s.identity.Name, s.identity.Dev, s.identity.Inode
	if err := s.e.store.PutSlice(record); err != nil {
		return err
	}
	killpoint.Pass("attach.stored")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = true
	return nil
}

// attach gives the process a lane, and the ledger; in a pool, the like there.
func (s *slice) attach(peer *process.Handle) (reply ledger.Reply, files []*os.File, err error) {
	if s.pool != nil {
		if err := s.pool.noteLedger(); err != nil {
			return reply, nil, err
		}
	}
	if err := s.noteLedger(); err != nil {
		return reply, nil, err
	}
	l := &lane{process: peer, refusals: report.Process{PID: peer.PID, Command: process.Name(peer.PID)}, attached: time.Now()}
	var inPool *process.Handle
	if s.pool != nil {
		inPool, err = process.Again(peer.PID, peer.Start)
		if errors.Is(err, process.ErrDead) {
			return reply, nil, ledger.StatusNotMember
		}
		if err != nil {
			return reply, nil, err
		}
		defer func() {
			if err != nil { // else it is the pool's
				inPool.Close()
			}
		}()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return reply, nil, err
	}
	if old := s.byPID[peer.PID]; old != nil {
		// Either its pid was a dead process's, whose end we are about to be told. Or it is the same process, which
		// asks once per image: then it has called execve, and what the former image held went with its mappings.
		s.settle(old)
		killpoint.Pass("attach.settled")
	}
	number, ok := s.place()
	if !ok {
		s.log.Warn("the slice has no free process slot", "pid", peer.PID, "slots", ledger.Slots)
		return reply, nil, ledger.StatusFull
	}
	file, err := s.ledger.File()
	if err != nil {
		s.free = append(s.free, number)
		return reply, nil, err
	}
	l.number = number
	err = s.ledger.Assign(number, ledger.Owner{PID: peer.PID, Start: peer.Start, NSPID: peer.NSPID, PIDNS: peer.PIDNS})
	if err != nil {
		file.Close()
		s.damaged(fmt.Errorf("lane %d cannot be given to process %d: %w", number, peer.PID, err))
		return reply, nil, ledger.StatusClosed
	}
	killpoint.Pass("attach.assigned")
	l.generation = s.ledger.Generation(number)
	s.ledger.SetLive(number)
	killpoint.Pass("attach.live")
	s.own(l)
	files = append(files, file)
	if s.pool != nil {
		var file *os.File
		if reply.PoolLane, file, err = s.pool.attach(inPool); err == nil {
			files = append(files, file)
		}
	}
	if err == nil {
		err = s.watch(l)
	}
	if err != nil {
		for _, file := range files {
			file.Close()
		}
		if reply.PoolLane != 0 {
			s.pool.withdraw(reply.PoolLane)
		}
		s.disown(l)
		s.ledger.SetFree(number)
		return ledger.Reply{}, nil, err
	}
	s.log.Debug("a process attached", "pid", peer.PID, "lane", number)
	reply.Lane, reply.Size = number, ledger.Size
	return reply, files, nil
}

// refusal is why the slice's processes get nothing; nil if they do. Called with mu held.
func (s *slice) refusal() error {
	if s.closing {
		return ledger.StatusClosed
	}
	return refusalIn(s.state)
}

// own puts a lane on the books; disown takes it off. Called with mu held.
func (s *slice) own(l *lane) {
	for i := range ledger.Devices {
		l.refusals.Begin(i, s.ledger.Refusals(i, l.number))
	}
	s.lanes[l.number], s.byPID[l.process.PID], s.live[l.number] = l, l, 1
}

func (s *slice) disown(l *lane) {
	delete(s.lanes, l.number)
	if s.byPID[l.process.PID] == l {
		delete(s.byPID, l.process.PID)
	}
	s.live[l.number] = 0
	s.free = append(s.free, l.number)
}

// watch is called with mu held.
func (s *slice) watch(l *lane) error {
	// On another goroutine, since the watcher's has all slices to serve and this one may have to wait for mu.
	return s.e.deaths.Watch(l.process, func() { go s.died(l) })
}

// died gives back what a dead process held.
func (s *slice) died(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes[l.number] != l {
		return // an orphan that was settled, or the slice is gone
	}
	killpoint.Pass("death.seen")
	s.settle(l)
}

// settle ends a lane. Called with mu held.
func (s *slice) settle(l *lane) {
	s.e.deaths.Unwatch(l.process)
	if s.state == api.Active || s.state == api.Expired {
		s.forgetSuspended(l)
		bytes, err := s.ledger.Settle(l.number, l.generation)
		if err != nil {
			s.damaged(fmt.Errorf("lane %d of process %d cannot be settled: %w", l.number, l.process.PID, err))
		}
		for i, d := range s.devices {
			if bytes[i] > 0 {
				s.log.Debug("given back for a process", "device", d.uuid, "pid", l.process.PID, "bytes", bytes[i])
			}
		}
		killpoint.Pass("death.settled")
		for i := range s.devices {
			s.refusals.Exit(&l.refusals, i, s.ledger.Refusals(i, l.number))
		}
		s.ledger.SetFree(l.number)
	}
	if !l.process.Alive() { // else it called execve, which closes what the driver would go by
		s.exited(l.process)
	}
	s.disown(l)
	l.process.Close()
}

// addDevice finds or adds a device of the ledger. The process says which one it sees and how big it is; with
// driver truth the process is not believed about the size. One of which the slice cannot be given its quota has limit 0.
func (s *slice) addDevice(raw [16]byte, total uint64) (uint32, error) {
	uuid := driver.UUID{Raw: raw}
	if s.e.truth != nil {
		known := s.e.truth.device(raw)
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
	if index >= 0 || err != nil { // it came meanwhile
		return uint32(max(index, 0)), err
	}
	s.mu.Lock()
	limit, ok := s.quota(raw, total)
	count := len(s.devices)
	s.mu.Unlock()
	switch {
	case !ok:
		return 0, ledger.StatusNoDevice
	case total == 0 || limit == 0:
		return 0, ledger.StatusMalformed
	case count == ledger.Devices:
		return 0, ledger.StatusFull
	}
	if s.pool != nil { // first, since who finds it in the slice looks for it there
		if err := s.pool.addDevice(uuid, total); err != nil {
			return 0, err
		}
	}
	asked := min(limit, total)
	undo, denied := s.admitDevice(uuid.String(), asked)
	if denied != nil {
		limit = 0
	}
	d := s.describe(uuid, limit, total)
	record := s.storedNow()
	record.Limits = append(record.Limits, s.storedLimit(d))
	// Stored first: a page with a device more than the store knows of would look damaged after a restart.
	if err := s.e.store.PutSlice(record); err != nil {
		if denied == nil {
			undo()
		}
		return 0, err
	}
	killpoint.Pass("device.stored")
	if denied != nil {
		s.log.Warn("the slice uses a device of which it can be given nothing", "device", uuid, "err", denied)
		s.tell(api.Event{Kind: api.EventDenied, Device: uuid.String(), Requested: asked, Cause: denied.Error()})
	}
	s.mu.Lock()
	if err = s.refusal(); err == nil {
		s.devices = append(s.devices, d)
		if err = s.write(count); err != nil {
			s.devices = s.devices[:count]
			s.damaged(fmt.Errorf("device %s cannot be added: %w", uuid, err))
			err = ledger.StatusClosed
		}
	}
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s.followNative()
	s.log.Info("the slice uses a device", "device", uuid, "bytes", limit)
	return uint32(count), nil
}

// hasDevice is the ledger's index of a device; -1 if it does not have it, and an error if the slice's processes get nothing.
func (s *slice) hasDevice(raw [16]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return -1, err
	}
	return s.find(raw), nil
}
