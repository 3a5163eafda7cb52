// SPDX-License-Identifier: Apache-2.0

// Package store keeps the enforcer's state across restarts:
//
//	<run directory>/records-<boot>/   one file per record, never synced: survives the daemon, but not the host
//	    slice-<generation>    Slice, released or not
//	    pool-<name>           PoolState
//	    lock                  held by the enforcer
//	<state directory>/state.json      a document, replaced as a whole and synced: survives the host
//	    pools             Pool, by name
//	    contexts          measured bytes of a process's first context, by model of device and driver
//
// Each file is JSON below a line with its schema and checksum. A slice is meaningless after a reboot, since its container is gone. So its
// record needs no sync, and a write of it fails only if the run directory is full. Each record has a file of its own, so that damage to one
// loses that one only.
//
// The package owns these files. After a write that returned nil, the next enforcer finds the data; that of pools and contexts also survives
// a reboot. After a failed write it does not find the data. A damaged or newer file is never used and never emptied, but renamed and
// logged. The package must never interpret a record: the enforcer finds out whether a slice still lives.
package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// lockPatience is how long to wait for another enforcer's lock. A child that a killed enforcer had forked keeps its locks until execve.
const lockPatience = time.Second

var (
	// ErrLocked means that another enforcer uses the run directory.
	ErrLocked = errors.New("another enforcer uses this run directory")
	ErrClosed = errors.New("the store is closed")
)

// Slice is what a restarted enforcer needs to find a slice again, and to tell whether it is still the same.
type Slice struct {
	Request    api.RegisterRequest `json:"request"`
	Generation uint64              `json:"generation"`
	Created    time.Time           `json:"created"`
	Limits     []Limit             `json:"limits"` // in the order of the ledger's devices

	// Released means that the slice is over, and that its files on the host are not yet removed.
	Released bool `json:"released,omitempty"`

	// Changing means that Limits are being written to the page, which may still have the former ones.
	Changing bool `json:"changing,omitempty"`

	// Deadline is when the slice expires, since boot (CLOCK_BOOTTIME); 0 is never. Expired means that it has expired, and can charge
	// nothing more. Asked is when its processes were then sent a signal to end, or 0.
	Deadline time.Duration `json:"deadline,omitempty"`
	Expired  bool          `json:"expired,omitempty"`
	Asked    time.Duration `json:"asked,omitempty"`

	// Native means that the cgroup may have limits of the driver.
	Native bool `json:"native,omitempty"`

	InitStart   uint64 `json:"init_start"`             // start time of Request.PID, see package process
	PIDNS       uint64 `json:"pid_ns,omitempty"`       // inode of a container's pid namespace
	Leads       bool   `json:"leads_pid_ns,omitempty"` // Request.PID is the first process of that namespace
	CgroupMount string `json:"cgroup_mount,omitempty"`
	CgroupRel   string `json:"cgroup_rel,omitempty"`
	CgroupInode uint64 `json:"cgroup_inode,omitempty"`
	CgroupV2    bool   `json:"cgroup_v2,omitempty"`

	Dir string `json:"dir"`
	Ledger
	Damaged string `json:"damaged,omitempty"` // why the ledger cannot be trusted any more: it was overwritten

	// TokenSum is the SHA-256 of a session's token. Joined are the processes that showed the token.
	TokenSum []byte   `json:"token_sum,omitempty"`
	Joined   []Joined `json:"joined,omitempty"`

	// Suspended is set for a slice that is suspended, suspending or resuming.
	Suspended *Suspension `json:"suspended,omitempty"`

	// Survivors are the processes that outlive their released session.
	Survivors []Process `json:"survivors,omitempty"`
}

// Process is a process of this boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // see package process
}

// Suspension means that the memory of a slice's processes is off the devices, or being moved.
type Suspension struct {
	State     api.State         `json:"state"` // Suspending, Suspended or Resuming
	Processes []Moved           `json:"processes"`
	Spare     map[string]uint64 `json:"spare,omitempty"`   // bytes that the devices had free after the move, beyond those that were moved
	Reason    string            `json:"reason,omitempty"`  // why a required return of the memory failed
	Evicted   bool              `json:"evicted,omitempty"` // it returns when a process needs it
}

// Away reports whether the memory is off the devices, so that others may use the room.
func (s *Suspension) Away() bool { return s != nil && s.State == api.Suspended }

// Moved is a process with moved memory.
type Moved struct {
	Process
	Bytes map[string]uint64 `json:"bytes,omitempty"` // bytes by device that the driver held for it when it was locked
	Left  map[string]uint64 `json:"left,omitempty"`  // bytes by device that it still holds, after moving its memory itself

	// ByDriver means that the driver has moved Left as well, or has to.
	ByDriver bool `json:"by_driver,omitempty"`
}

// OnHost returns what was moved of the process's memory, by device.
func (m *Moved) OnHost() map[string]uint64 {
	bytes := make(map[string]uint64)
	for uuid, held := range m.Bytes {
		bytes[uuid] = held - min(held, m.Left[uuid])
	}
	return bytes
}

// Joined is a process that joined a session.
type Joined struct {
	Process
	UID uint32 `json:"uid"`
}

// Limit is a quota of the request, resolved to one device.
type Limit struct {
	Device string `json:"device"` // a UUID
	Bytes  uint64 `json:"bytes"`
	Total  uint64 `json:"total"` // bytes of the device's memory

	// Most is the highest limit that was ever in force on the device, if that exceeds Bytes: a process may still hold bytes charged under
	// it.
	Most uint64 `json:"most,omitempty"`
}

// PoolState is the ledger of a pool in this boot.
type PoolState struct {
	Limits []Limit `json:"limits"` // in the order of the ledger's devices
	Ledger
	Damaged string `json:"damaged,omitempty"` // as in Slice
}

// Ledger identifies a ledger, as ledger.Identity. The zero value stands for none.
type Ledger struct {
	Name  [16]byte `json:"ledger_name"`
	Dev   uint64   `json:"ledger_dev"`
	Inode uint64   `json:"ledger_inode"`
}

// Pool is the part of a pool that survives a reboot.
type Pool struct {
	Name     string        `json:"name"`
	Quotas   []api.Quota   `json:"quotas"`
	Created  time.Time     `json:"created"`
	Tenant   string        `json:"tenant,omitempty"`
	TTL      time.Duration `json:"ttl,omitempty"`
	Label    string        `json:"label,omitempty"`
	Elastic  bool          `json:"elastic,omitempty"`
	Priority int           `json:"priority,omitempty"`
	ByGrant  bool          `json:"by_grant,omitempty"`
	Asked    []api.Quota   `json:"asked,omitempty"` // the quotas at its creation, if they were changed since
}

// Options configure a Store.
type Options struct {
	RunDir, StateDir string
	Boot             string // the host's boot id
	Log              *slog.Logger

	// Before is called before each write with its bucket and key. Its error fails the write. For tests; nil is allowed.
	Before func(key string) error

	disk durable.Disk // the host's by default; tests set another
}

// Store has the open files. It is safe for concurrent use.
type Store struct {
	before   func(key string) error
	records  string // the directory of this boot's records
	lock     *os.File
	slices   map[uint64]Slice // as found by Open, by generation
	pools    map[string]PoolState
	settling chan struct{} // held during writes of owed records
	state    state

	mu       guard.Mutex[guard.Leaf] // guards the fields below: the progress of writes, and the owed records
	closed   bool
	waiting  int       // number of writes
	since    time.Time // when the oldest of them began, or the last one ended
	failures uint64
	runErr   error            // result of the last write of a record
	stateErr error            // result of the last write of the state directory's file
	owed     map[uint64]*owed // by generation
	retrying bool

	writes sync.WaitGroup
}

// Open opens or creates the files. It renames an unusable file to <path>.damaged-<time> or <path>.newer-<time> (a record's into the run
// directory), and logs that. It returns ErrLocked if another enforcer holds the run directory's lock for lockPatience. The caller ensures
// that no other enforcer uses the state directory.
func Open(o Options) (*Store, error) {
	s := &Store{before: o.Before, settling: make(chan struct{}, 1), owed: make(map[uint64]*owed)}
	if o.disk.Create == nil {
		o.disk = durable.Host()
	}
	err := s.openRecords(o)
	if err == nil {
		if err = s.state.open(o); err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	return s, nil
}

// Close closes the Store after the pending writes. It tries the owed records once more.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.writes.Wait()
	s.settleOwed()
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("cannot close the store: %w", err)
	}
	return nil
}

// begin is called before a write, and end after it.
func (s *Store) begin() error {
	guard.MayWait("a write to the store")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.waiting++; s.waiting == 1 {
		s.since = time.Now()
	}
	s.writes.Add(1)
	return nil
}

func (s *Store) end(of *error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	s.since = time.Now()
	if *of = err; err != nil {
		s.failures++
	}
	s.writes.Done()
}

func (s *Store) mayWrite(key string) error {
	if s.before == nil {
		return nil
	}
	return s.before(key)
}

// Progress returns for how long a pending write has waited without any write ending, the number of failed writes, and the errors of the
// last writes. It does not block.
func (s *Store) Progress() (waiting time.Duration, failures uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		waiting = time.Since(s.since)
	}
	return waiting, s.failures, errors.Join(s.runErr, s.stateErr)
}

// Retry starts to write the owed records, to probe the run directory, and to write the state if its last write failed. It returns at once.
func (s *Store) Retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.retrying {
		return
	}
	s.retrying = true
	s.writes.Add(1)
	go func() {
		defer s.writes.Done()
		s.settleOwed()
		s.mu.Lock()
		s.retrying = false
		s.mu.Unlock()
	}()
}

// settleOwed writes the owed records, probes the run directory, and writes the state if its last write failed.
func (s *Store) settleOwed() {
	run := s.mayWrite("probe")
	if run == nil {
		run = errors.Join(s.putOwed(), s.probe())
	}
	s.mu.Lock()
	s.runErr = run
	failed := s.stateErr != nil
	s.mu.Unlock()
	if failed {
		err := s.mayWrite("probe")
		if err == nil {
			err = s.state.change(func(*document) {})
		}
		s.mu.Lock()
		s.stateErr = err
		s.mu.Unlock()
	}
}
