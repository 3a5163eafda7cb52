// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Names in a lease's directory.
const (
	recordName  = "lease.json"
	tokenName   = "token"
	sessionName = "session.sock"
	sharedName  = "shared.sock"
)

// record is what the next service finds of a lease. It is written before anything else of the lease, and removed last.
type record struct {
	ID         string    `json:"id"`
	UID        uint32    `json:"uid"` // whose it is
	GID        uint32    `json:"gid"`
	BrokerUID  uint32    `json:"broker_uid"`
	Device     string    `json:"device"`
	DeviceName string    `json:"device_name"`
	VRAM       uint64    `json:"vram"`
	Overhead   uint64    `json:"overhead"`
	Reserved   bool      `json:"reserved,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Acquired   time.Time `json:"acquired"`
	// Of the broker and its slice; stored once it serves.
	PID        int    `json:"pid,omitempty"`
	Start      uint64 `json:"start,omitempty"` // process.Identity's
	Generation uint64 `json:"generation,omitempty"`
}

// lease is one that is being acquired, is active, or is being ended.
type lease struct {
	record
	serving bool          // Service.mu guards it
	since   time.Time     // since when what it was granted is counted
	done    chan struct{} // closed once nothing is left of it

	process *process.Handle // nil before the broker was started
	exited  chan struct{}   // closed when it has
	child   *child          // nil of one that a former service started

	mu       sync.Mutex // guards all below
	ending   bool
	last     *leasepb.Lease // once done is closed
	expires  *time.Time
	deadline time.Time // when that is, by the monotonic clock
	charged  uint64
}

// lives notes what the enforcer says of the lease's slice.
func (l *lease) lives(slice api.Slice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires, l.charged = slice.Expires, 0
	if slice.Expires != nil {
		l.deadline = time.Now().Add(slice.Remaining)
	}
	for _, d := range slice.Devices {
		l.charged += d.Used + d.Overhead
	}
}

// isOver says whether its time is, for a second at least: the enforcer goes first.
func (l *lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires != nil && time.Since(l.deadline) > time.Second
}

// shown is the lease as clients see it, as it was when the enforcer was last asked.
func (l *lease) shown() *leasepb.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shownLocked()
}

func (l *lease) shownLocked() *leasepb.Lease {
	shown := &leasepb.Lease{
		Id: l.ID, Device: l.Device, DeviceName: l.DeviceName, Vram: l.VRAM, Overhead: l.Overhead, Reserved: l.Reserved, Tenant: l.Tenant,
		Uid: l.UID, Acquired: timestamppb.New(l.Acquired), Charged: l.charged, State: leasepb.Lease_ACTIVE,
	}
	if l.expires != nil {
		shown.Expires = timestamppb.New(*l.expires)
	}
	return shown
}

// put writes the record: a new one, or all of another one.
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

// readRecord is of the lease whose directory that is.
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

// takeUp finds what a former service left: leases whose broker is alive go on, of all others nothing stays.
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
		l := &lease{done: make(chan struct{}), since: time.Now()}
		l.record, err = readRecord(s.dirOf(id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.Log.Error("a lease's record cannot be read: the lease is ended", "lease", id, "err", err)
		}
		l.ID = id
		s.leases[id] = l
		if !s.adopt(l) {
			s.end(l, leasepb.Lease_FAILED, "its broker ended while no lease service ran")
		}
	}
	for _, id := range s.cgroups.list() {
		if s.leases[id] == nil {
			s.Log.Info("ending what is in a cgroup of no lease", "lease", id)
			s.clear(id)
		}
	}
	return nil
}

// adopt takes up a lease whose broker is alive.
func (s *Service) adopt(l *lease) bool {
	if l.PID == 0 {
		return false
	}
	var err error
	if l.process, err = process.Again(l.PID, l.Start); err != nil {
		return false
	}
	l.exited = make(chan struct{})
	if err := s.deaths.Watch(l.process, func() { close(l.exited) }); err != nil {
		l.exited = nil
		return false
	}
	l.serving = true
	s.counts.takenUp(l)
	s.Log.Info("lease taken up", "lease", l.ID, "pid", l.PID)
	go s.await(l)
	return true
}
