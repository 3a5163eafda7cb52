// SPDX-License-Identifier: Apache-2.0

// Package enforcer is the one authority on which slices exist. It owns their registration, their directories,
// attach sockets and ledgers, who is a member of which, what becomes of the bytes of the dead, and the
// comparison with driver truth. It is what gpusliced runs, and what `gpuslice run` embeds.
//
// What it must never do:
//
//   - answer yes before the store has it on disk: a restart must find every slice that somebody was promised;
//   - believe a process about who it is (the kernel is asked), or a ledger's page about anything that was the
//     enforcer's to write there (its own copy counts);
//   - stand in the way of a charge: processes that are attached go on while it is down.
//
// Locks: change serialises what makes and unmakes slices; mu guards the registry's maps and is never held
// over anything that waits; each slice has its own. They are taken in that order.
package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Truth is what the enforcer asks the driver.
type Truth interface {
	Devices() ([]driver.Device, error)
	// Processes is what the driver holds on a device for each pid of the host, in bytes; driver.Unknown where
	// it does not say.
	Processes(uuid string) (map[int]uint64, error)
	DriverVersion() string
}

// DefaultContextBytes is about what a first context takes on a large device.
const DefaultContextBytes = 512 << 20

// Counter counts what happens, for metrics.
type Counter interface {
	Registered(code api.Code, took time.Duration) // "" if the slice was given
	Released(cause string)
	Attached(result string)
}

// Options of an enforcer.
type Options struct {
	RunDir   string // slices' directories are made below; only the enforcer may write there
	StateDir string // the store
	Library  string // the installed interceptor
	// ContextBytes is charged for a process's first context on a device until its true cost was learned.
	// 0 is DefaultContextBytes.
	ContextBytes uint64
	// Interval of the comparison with driver truth, and of the look at each page's header. 0 is a second.
	Interval time.Duration
	Truth    Truth // nil: there is none, and NoTruth says why
	NoTruth  string
	Log      *slog.Logger
	// Caller says who asks, by the kernel's word, for the context of a call; false if that is not known. nil: only
	// this process itself asks.
	Caller func(context.Context) (pid int, uid uint32, known bool)
	// Unprivileged enforcers serve sessions of their own user only: no containers, no restart.
	Unprivileged bool
}

// Enforcer is the registry of slices.
type Enforcer struct {
	options Options
	log     *slog.Logger
	boot    string
	lock    *os.File
	store   *store.Store
	host    *cgroup.Host     // nil if unprivileged
	cgroups *cgroup.Watcher  // nil if unprivileged
	deaths  *process.Watcher // of members and of first processes
	truth   *truth           // nil without driver truth
	events  *event.Log

	counter atomic.Pointer[Counter]

	change    sync.Mutex          // registering, releasing, restoring
	lingering map[*slice]struct{} // released, with processes that are alive; guarded by change

	mu     sync.RWMutex
	slices map[string]*slice // by id
	closed bool
}

// New opens the state, and takes up the slices that are still alive. It fails if another enforcer has the state.
func New(options Options) (*Enforcer, error) {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Interval <= 0 {
		options.Interval = time.Second
	}
	if options.ContextBytes == 0 {
		options.ContextBytes = DefaultContextBytes
	}
	e := &Enforcer{options: options, log: options.Log, events: event.NewLog(eventsKept), slices: make(map[string]*slice), lingering: make(map[*slice]struct{})}
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Enforcer) open() error {
	var err error
	if e.boot, err = process.BootID(); err != nil {
		return err
	}
	if err := makePrivate(e.options.StateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if e.lock, err = lockState(e.options.StateDir); err != nil {
		return err
	}
	if err := makePrivate(e.slicesDir(), 0o755); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if e.store, err = openStore(e.options.StateDir, e.log); err != nil {
		return err
	}
	if e.deaths, err = process.NewWatcher(); err != nil {
		return err
	}
	if !e.options.Unprivileged {
		if e.host, err = cgroup.Open("/proc"); err != nil {
			return err
		}
		if e.cgroups, err = cgroup.NewWatcher(); err != nil {
			return err
		}
	}
	if err := e.openTruth(); err != nil {
		return err
	}
	return e.restore()
}

// Run compares pages and ledgers with what they should be, until ctx ends. Then it closes the enforcer, and leaves
// the slices as they are: the next enforcer takes them up.
func (e *Enforcer) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	if e.truth != nil {
		for _, d := range e.truth.devices {
			loops.Go(func() { e.compare(ctx, d) })
		}
	}
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ticker.C:
			for _, s := range e.all() {
				s.check()
			}
		case <-ctx.Done():
		}
	}
	e.events.Close() // first, so that whoever follows them does not hold up the end
	loops.Wait()
	return e.Close()
}

// Close lets go of everything but the slices themselves.
func (e *Enforcer) Close() error {
	e.change.Lock()
	defer e.change.Unlock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	e.events.Close()
	var errs []error
	// First the watchers: nobody is told of a death any more, so nothing below is undone by one.
	if e.deaths != nil {
		errs = append(errs, e.deaths.Close())
	}
	if e.cgroups != nil {
		errs = append(errs, e.cgroups.Close())
	}
	for _, s := range e.all() {
		s.leave()
	}
	for s := range e.lingering {
		s.leave()
	}
	clear(e.lingering)
	e.mu.Lock()
	clear(e.slices)
	e.mu.Unlock()
	if e.store != nil {
		errs = append(errs, e.store.Close())
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	return errors.Join(errs...)
}

// ErrClosed is returned by an enforcer that was closed. Its slices go on.
var ErrClosed = errors.New("the enforcer is stopping: ask again")

// lockChange takes change, in an enforcer that is open.
func (e *Enforcer) lockChange() error {
	e.change.Lock()
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		e.change.Unlock()
		return ErrClosed
	}
	return nil
}

// CountWith sets where events are counted from now on.
func (e *Enforcer) CountWith(c Counter) { e.counter.Store(&c) }

// count calls f if somebody counts.
func (e *Enforcer) count(f func(Counter)) {
	if c := e.counter.Load(); c != nil {
		f(*c)
	}
}

// all slices, in no order.
func (e *Enforcer) all() []*slice {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := make([]*slice, 0, len(e.slices))
	for _, s := range e.slices {
		all = append(all, s)
	}
	return all
}

func (e *Enforcer) find(id string) *slice {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.slices[id]
}

// Info about the enforcer.
func (e *Enforcer) Info(context.Context) (api.Info, error) {
	info := api.Info{Version: api.Version, Truth: "nvml", BootID: e.boot, PID: os.Getpid()}
	if e.truth == nil {
		info.Truth = e.options.NoTruth
	} else {
		info.Driver = e.options.Truth.DriverVersion()
	}
	return info, nil
}
