// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	recordName  = "lease.json"
	tokenName   = "token"
	sessionName = "session.sock"
	sharedName  = "shared.sock"
)

// record is the persistent state of a lease, in a file for root only. It is written before any other part of the lease is
// created, and removed last.
type record struct {
	ID         string    `json:"id"`
	UID        uint32    `json:"uid"` // of the lease's user
	GID        uint32    `json:"gid"`
	BrokerUID  uint32    `json:"broker_uid"`
	Device     string    `json:"device"`
	DeviceName string    `json:"device_name"`
	Capability string    `json:"compute_capability,omitempty"`
	VRAM       uint64    `json:"vram"`
	Overhead   uint64    `json:"overhead"`
	Reserved   bool      `json:"reserved,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Acquired   time.Time `json:"acquired"`
	// The broker and its slice; stored once the broker serves.
	identity
	Generation uint64        `json:"generation,omitempty"`
	Session    broker.Config `json:"session,omitzero"` // the broker's configuration; stored before each restart
	Over       *endReason    `json:"over,omitempty"`   // stored before anything is released
}

type endReason struct {
	Reason string `json:"reason"`
}

// identity identifies a process, as process.Identity does.
type identity struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
}

// lease is a lease that is being acquired, active, or ending.
type lease struct {
	record
	serving bool          // guarded by Service.mu
	since   time.Time     // start of the granted byte-seconds
	done    chan struct{} // closed once nothing of the lease is left

	live context.Context // ends with the lease or the service
	quit context.CancelFunc
	pace *pace.Limiter // of broker restarts

	// starting guards the fields below once the lease serves, and the record. It is held while a broker starts and while the
	// lease ends.
	starting sync.Mutex
	process  *process.Handle // nil before the start
	exited   chan struct{}   // closed when process has exited
	child    *child          // nil if a former service started the broker

	mu       sync.Mutex // guards all below
	ending   bool
	restarts uint64
	why      string         // cause of the last restart
	last     *leasepb.Lease // set before done is closed
	answered uint64         // number of the question that the fields below answer
	expires  *time.Time
	deadline time.Time // expires, on the monotonic clock
	charged  uint64
}

// pass passes a kill point of the broker's start, for the first broker or a later one.
func (l *lease) pass(step string) {
	if l.Session.Number == 0 {
		killpoint.Pass("acquire." + step)
	} else {
		killpoint.Pass("restart." + step)
	}
}

func (s *Service) newLease(r record) *lease {
	l := &lease{record: r, done: make(chan struct{}), since: time.Now(), pace: pace.Every(restartInterval, restartsAtOnce)}
	l.live, l.quit = context.WithCancel(s.live)
	return l
}

// recordAnswer records the enforcer's answer about the slice, unless a later question has its answer.
func (l *lease) recordAnswer(question uint64, slice api.Slice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if question < l.answered {
		return
	}
	l.answered, l.expires, l.charged = question, slice.Expires, 0
	if slice.Expires != nil {
		l.deadline = time.Now().Add(slice.Remaining)
	}
	for _, d := range slice.Devices {
		l.charged += d.Used + d.Overhead
	}
}

// isOver reports whether the lease expired more than a second ago: the enforcer acts first.
func (l *lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires != nil && time.Since(l.deadline) > time.Second
}

// whyGone is why the enforcer has no slice of the lease any more. A slice that ends within a second of its deadline has expired: the deadline
// here lags by the time that the enforcer's answer took.
func (l *lease) whyGone() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expires != nil && time.Until(l.deadline) < time.Second {
		return reasonExpired
	}
	return reasonReleased
}

// toMessage returns the lease as clients see it, as of the enforcer's last answer.
func (l *lease) toMessage() *leasepb.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shownLocked()
}

func (l *lease) shownLocked() *leasepb.Lease {
	message := &leasepb.Lease{
		Id: l.ID, Device: l.Device, DeviceName: l.DeviceName, ComputeCapability: l.Capability, Vram: l.VRAM, Overhead: l.Overhead, Reserved: l.Reserved, Tenant: l.Tenant,
		Uid: l.UID, Acquired: timestamppb.New(l.Acquired), Charged: l.charged, State: leasepb.Lease_ACTIVE,
		Restarts: l.restarts, RestartReason: l.why,
	}
	if l.expires != nil {
		message.Expires = timestamppb.New(*l.expires)
	}
	return message
}

// put writes the record atomically.
func (l *lease) put(dir string) error {
	text, err := json.Marshal(l.record)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordName)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readRecord(dir string) (r record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", filepath.Join(dir, recordName), err)
	}
	if r.ID != filepath.Base(dir) {
		return r, fmt.Errorf("%s is of lease %q", filepath.Join(dir, recordName), r.ID)
	}
	return r, nil
}

// takeUp adopts a former service's leases if their broker has served, and ends all others.
func (s *Service) takeUp() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		id := entry.Name()
		r, err := readRecord(s.dirOf(id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.Log.Error("a lease's record cannot be read: the lease is ended", "lease", id, "err", err)
		}
		r.ID = id
		l := s.newLease(r)
		s.leases[id] = l
		killpoint.Pass("takeup.read")
		switch {
		case r.Over != nil:
			s.end(l, r.Over.Reason)
		case !s.adopt(l):
			s.end(l, "its broker had not served when its lease service ended")
		}
	}
	for _, id := range s.cgroups.list() {
		if s.leases[id] == nil {
			s.Log.Info("killing the processes in a cgroup that belongs to no lease", "lease", id)
			s.clear(id)
		}
	}
	killpoint.Pass("takeup.done")
	return nil
}

// adopt takes over a lease. It returns false if its broker never served. In place of a dead one mind starts another.
func (s *Service) adopt(l *lease) bool {
	if l.PID == 0 {
		return false
	}
	exited := make(chan struct{})
	l.exited = exited
	var err error
	if l.process, err = process.Again(l.PID, l.Start); err == nil {
		err = s.deaths.Watch(l.process, func() { close(exited) })
	}
	if err != nil {
		close(exited)
	}
	l.serving = true
	l.restarts, l.why = l.Session.Number, l.Session.Before
	s.counts.takenUp(l)
	s.Log.Info("lease taken up", "lease", l.ID, "pid", l.PID)
	s.supervisors.Go(func() { s.superviseBroker(l) })
	return true
}
