// SPDX-License-Identifier: Apache-2.0

// Package store keeps what the enforcer must know again after a restart:
//
//	<run directory>/records-<boot>/   a file for each record, never synced: survives the daemon, and not the host
//	    slice-<generation>    Slice, released or not
//	    pool-<name>           PoolState
//	    lock                  held by the enforcer
//	<state directory>/state.json      a document, replaced as a whole and synced: survives the host
//	    pools             Pool, by name
//	    contexts          learned bytes of a process's first context, by model of device and driver
//
// Each file is JSON below a line with its schema and checksum. A slice means nothing after a reboot, since its container is gone; so its
// record costs no sync, and a write of it fails only if the run directory is full. A record is a file so that a damaged record costs that
// record: no other can be lost with it or come back.
//
// The package owns these files. A write that returned nil is there for the next enforcer, and after a reboot if it was of a pool or a
// context; one that failed is not. A file that is damaged or newer is never used and never silently emptied, but renamed and reported.
// The package must never decide what a record means: the enforcer finds out whether a slice still lives.
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

// lockPatience is how long a lock of another enforcer is waited for. A process that an enforcer had forked has its locks until it
// executes its program, also where that enforcer was killed.
const lockPatience = time.Second

var (
	// ErrLocked says that another enforcer works on the run directory.
	ErrLocked = errors.New("another enforcer uses this run directory")
	// ErrClosed is returned by a Store after Close.
	ErrClosed = errors.New("the store is closed")
)

// Slice is all that a restarted enforcer needs to find a slice again, and to tell whether what it finds is
// still the same.
type Slice struct {
	Request    api.RegisterRequest `json:"request"`
	Generation uint64              `json:"generation"`
	Created    time.Time           `json:"created"`
	Limits     []Limit             `json:"limits"` // the devices of the ledger, in its order

	// Released says that the slice is over, and what it left on the host is not yet cleared away.
	Released bool `json:"released,omitempty"`

	// Changing says that the limits of the page are being set to Limits, and may still be what they were.
	Changing bool `json:"changing,omitempty"`

	// Deadline is when the slice's time is over, since boot (CLOCK_BOOTTIME); 0 is never. Expired says that this was
	// seen, so that nothing more may be charged; and Asked when its processes were then asked to end, 0 if they were not.
	Deadline time.Duration `json:"deadline,omitempty"`
	Expired  bool          `json:"expired,omitempty"`
	Asked    time.Duration `json:"asked,omitempty"`

	// Native says that the driver may hold the cgroup to limits.
	Native bool `json:"native,omitempty"`

	InitStart   uint64 `json:"init_start"`             // start time of Request.PID, see package process
	PIDNS       uint64 `json:"pid_ns,omitempty"`       // inode of a container's pid namespace
	Leads       bool   `json:"leads_pid_ns,omitempty"` // whose first process it is
	CgroupMount string `json:"cgroup_mount,omitempty"`
	CgroupRel   string `json:"cgroup_rel,omitempty"`
	CgroupInode uint64 `json:"cgroup_inode,omitempty"`
	CgroupV2    bool   `json:"cgroup_v2,omitempty"`

	Dir string `json:"dir"`
	Ledger
	Damaged string `json:"damaged,omitempty"` // why the ledger cannot be trusted any more: it was overwritten

	// TokenSum is the SHA-256 of a session's token; it cannot be shown. Joined are the processes that showed the token.
	TokenSum []byte   `json:"token_sum,omitempty"`
	Joined   []Joined `json:"joined,omitempty"`

	// Suspended is nil but for a slice that is suspended, or on the way there or back.
	Suspended *Suspension `json:"suspended,omitempty"`

	// Survivors are the processes of a session that is released that lived on.
	Survivors []Process `json:"survivors,omitempty"`
}

// Process is one of this boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // see package process
}

// Suspension says that the memory of a slice's processes is off the devices, or being moved.
type Suspension struct {
	State     api.State         `json:"state"` // Suspending, Suspended or Resuming
	Processes []Moved           `json:"processes"`
	Spare     map[string]uint64 `json:"spare,omitempty"`   // bytes that the devices had free beyond what was moved, when it had been
	Reason    string            `json:"reason,omitempty"`  // why the memory was not brought back when it should have been
	Evicted   bool              `json:"evicted,omitempty"` // it comes back when a process asks
}

// Moved is a process whose memory is moved.
type Moved struct {
	Process
	Bytes map[string]uint64 `json:"bytes,omitempty"` // that it held by the driver when it was locked, by device
	Left  map[string]uint64 `json:"left,omitempty"`  // that it still holds, of one that has moved its memory itself

	// ByDriver is of such a one whose Left the driver has moved, too, or is to.
	ByDriver bool `json:"by_driver,omitempty"`
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
	Total  uint64 `json:"total"` // bytes of memory of the device

	// Most is the highest limit that was ever in force there, if that was more than Bytes: a process that charged it may hold it
	// still.
	Most uint64 `json:"most,omitempty"`
}

// PoolState is what there is of a pool in this boot: its ledger.
type PoolState struct {
	Limits []Limit `json:"limits"` // the devices of the ledger, in its order
	Ledger
	Damaged string `json:"damaged,omitempty"` // as a slice's
}

// Ledger is what a ledger is found again by, as ledger.Identity; the zero value is of none.
type Ledger struct {
	Name  [16]byte `json:"ledger_name"`
	Dev   uint64   `json:"ledger_dev"`
	Inode uint64   `json:"ledger_inode"`
}

// Pool is what outlives the host's boot of a pool.
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
	Asked    []api.Quota   `json:"asked,omitempty"` // the quotas that it was created with, if they were changed since
}

// Options of a Store.
type Options struct {
	RunDir, StateDir string
	Boot             string // the host's boot id
	Log              *slog.Logger

	// Before is called before each write, with the bucket and key that are written; its error fails the write. For tests; nil is
	// nothing.
	Before func(key string) error

	disk durable.Disk // the host's, unless a test sets another
}

// Store is the open files. Its methods may be called by several goroutines.
type Store struct {
	before   func(key string) error
	records  string // the directory of this boot's records
	lock     *os.File
	slices   map[uint64]Slice // as Open found them, by generation
	pools    map[string]PoolState
	settling chan struct{} // held over writes of records that are owed
	state    state

	mu       guard.Mutex[guard.Leaf] // guards what follows: how the writes go, and those that failed and are owed
	closed   bool
	waiting  int       // writes
	since    time.Time // when the oldest of them was asked for, or the last one ended
	failures uint64
	runErr   error            // of the last write of a record; nil if it went well
	stateErr error            // of the last write of the state directory's file
	owed     map[uint64]*owed // by generation
	retrying bool

	writes sync.WaitGroup
}

// Open opens the files, or makes them. A file that cannot be used is renamed to <path>.damaged-<time> or <path>.newer-<time> (a record's into
// the run directory), and the log says so. It returns ErrLocked if another enforcer has the run directory for lockPatience. The caller makes
// sure that no other enforcer has the state directory.
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
		return nil, fmt.Errorf("open the store: %w", err)
	}
	return s, nil
}

// Close ends the Store, after the writes that were begun. What is owed still is tried once more.
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
		return fmt.Errorf("close the store: %w", err)
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

// Progress is for how long no write has ended though one waits, how many writes have failed, and why the last one of a file
// did; nil if it did not. It waits for nothing.
func (s *Store) Progress() (waiting time.Duration, failures uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		waiting = time.Since(s.since)
	}
	return waiting, s.failures, errors.Join(s.runErr, s.stateErr)
}

// Retry begins to write what is owed, and to find out whether records can be written, and the state if its last write failed. It returns
// at once.
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

// settleOwed writes a file in the run directory, behind what is owed, and the state if its last write failed.
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
