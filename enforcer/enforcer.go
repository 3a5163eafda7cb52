// SPDX-License-Identifier: Apache-2.0

// Package enforcer is the one authority on which slices exist. It owns their registration, their directories,
// attach sockets and ledgers, which processes are members of which, settlement of exited processes' bytes, and the
// sampling of driver truth. It is what gpusliced runs, and what `gpuslice run` embeds.
//
// What it must never do:
//
//   - answer yes before the store has it: a restart must find every slice that somebody was promised;
//   - trust a process's claim about what it is (the kernel is asked), or the ledger about anything that is the
//     enforcer's to write there (its own copy counts);
//   - stand in the way of a charge: processes that are attached go on while it is down.
//
// What is done with one slice or pool is ordered by its turn (registry.go), which may be held over the disk and the driver; a slice's is
// taken before its pool's. Locks guard memory only, and are held over nothing that waits (package guard).
package enforcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/cgroup"
	"github.com/gpuslice/gpuslice/enforcer/checkpoint"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/history"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/native"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/recovery"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// Truth is what the enforcer asks the driver.
type Truth interface {
	Devices() ([]driver.Device, error)
	// Processes is what the driver holds on a device for each pid of the host, in bytes; driver.Unknown where
	// it does not say.
	Processes(uuid string) (map[int]uint64, error)
	// Used is how many bytes of a device's memory are in use, the driver's own included.
	Used(uuid string) (uint64, error)
	// Busy is in how many percent of the time since then kernels of each pid ran on a device; nil if the driver does not say.
	Busy(uuid string, since time.Time) (map[int]uint32, error)
	DriverVersion() string
}

// DefaultContextBytes is about what a first context takes on a large device.
const DefaultContextBytes = 512 << 20

// Counter counts what happens, for metrics.
type Counter interface {
	Registered(code api.Code, took time.Duration) // "" if the slice was given
	Released(cause string)
	Attached(result string)
	Bypassed(action string) // memory past the ledger was found, and this is done about it
	Joined(result string)
	Allocated(n uint64) // allocations of processes, in any slice
	Told(api.Event)     // must not wait
}

// Checkpointer has the driver move what a process holds off its devices and back. A call may take as long as its timeout.
type Checkpointer interface {
	State(of process.Identity, timeout time.Duration) (checkpoint.State, error)
	Do(action checkpoint.Action, to process.Identity, timeout time.Duration) error
}

// Options of an enforcer.
type Options struct {
	RunDir   string // slices' directories and records, best in memory; only the enforcer may write there
	StateDir string // what survives the host's boot: pools, and what contexts cost
	Library  string // the installed interceptor
	// ContextBytes is charged for a process's first context on a device until its true cost was learned.
	// 0 is DefaultContextBytes.
	ContextBytes uint64
	// Interval of the samples of driver truth, and of the check of each ledger. 0 is a second.
	Interval time.Duration
	// The times of package truth, and for how long nothing that changes is asked for again. 0 are 5 s, 100 ms and 10 s.
	SettleTime, ExitGrace, IdleInterval time.Duration

	Truth   Truth // nil: there is none, and NoTruth says why
	NoTruth string
	// Backend enforces by the driver, on devices where that is found to work; nil: there is none. Enforcement is whether it is
	// wanted; "" is api.Auto. With api.Native there is no enforcer where it does not work.
	Backend     native.Backend
	Enforcement api.Enforcement
	Checkpoint  Checkpointer // nil: no slice can be suspended
	HostMemory  HostMemory   // nil: what a process moves itself is charged to its own cgroup
	Log         *slog.Logger
	// Caller is the process that asks, as the kernel reports it, for the context of a call; false if that is not known. nil: only
	// this process itself asks.
	Caller    func(context.Context) (asker session.Asker, known bool)
	Admission admission.Limits // how much of the devices may be given; the zero value is each byte once
	Elastic   Elastic          // the zero value promises nothing to elastic slices
	Users     []session.Limit  // of users without privileges; the first that is for a user holds, and who has none may have nothing
	Policy    Policy           // what is done about processes that hold memory past the ledger; the zero value names them
	// MaxTTL is the longest that a slice may live from when that is asked for, and what one gets that asks for nothing; 0
	// is no bound. Grace is what its processes then have between being asked to end and being killed; 0 is DefaultGrace.
	MaxTTL, Grace time.Duration
	// Clock is the time since boot, the host's suspension included. nil: CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Event is told of each event, in their order, and of which container or user it is, "" for the operator; it must not wait for
	// anything. nil: nobody is.
	Event func(of string, e api.Event)
	// Checks are what Health checks beside. nil: nothing.
	Checks func() []api.Check
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
	truth   *driverTruth     // nil without driver truth
	native  *native.Keeper   // where the driver enforces, too
	events  *event.Log
	history *history.Log
	book    *admission.Book // what is granted of each device, and to whom
	ends    sync.WaitGroup  // what goes on aside: the end of slices by force, writes of samplers

	now       func() time.Duration // since boot
	leases    chan struct{}        // somebody's deadline may be earlier than it was
	rooms     *rooms
	evictions *evictions
	hosting   *guard.Turn  // of one process that is given host memory, or gives it back: what is found to be of no use is not in use then
	ending    atomic.Bool  // what is being moved is left to the next enforcer
	gates     ledger.Gates // of evicted slices

	guesses  *session.Pace // wrong tokens
	changes  *session.Pace // of users' sessions
	shares   userShares
	counter  atomic.Pointer[Counter]
	progress progress

	pages *recovery.Scan      // while it is being restored
	deaf  map[*slice]struct{} // taken up by restore without an attach socket; of restore, and then of the regular check

	lastGeneration atomic.Uint64

	registry
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
	options.SettleTime = cmp.Or(options.SettleTime, 5*time.Second)
	options.ExitGrace = cmp.Or(options.ExitGrace, 100*time.Millisecond)
	options.IdleInterval = cmp.Or(options.IdleInterval, 10*time.Second)
	options.Policy = options.Policy.WithDefaults()
	if options.Grace == 0 {
		options.Grace = DefaultGrace
	}
	if options.Clock == nil {
		options.Clock = sinceBoot
	}
	e := &Enforcer{
		options: options, log: options.Log, events: event.NewLog(eventsKept),
		deaf: make(map[*slice]struct{}), registry: newRegistry(),
		guesses: session.WrongTokens(), changes: session.Changes(),
	}
	e.now, e.leases, e.rooms = options.Clock, make(chan struct{}, 1), newRooms()
	e.hosting, e.evictions = guard.NewTurn(), newEvictions()
	e.progress.begin = time.Now()
	e.events.Tell(e.told)
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
	if err := durable.MakePrivate(e.options.StateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if e.lock, err = lockState(e.options.StateDir); err != nil {
		return err
	}
	if err := durable.MakePrivate(e.slicesDir(), 0o711); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Chmod(e.slicesDir(), 0o711); err != nil { // an earlier version's can be listed
		return err
	}
	if err = e.openStore(); err != nil {
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
	e.book = admission.New(e.options.Admission, e.truth.bookDevices(), e.options.Elastic.Overcommit)
	if err := e.openNative(); err != nil {
		return err
	}
	dir := e.options.StateDir
	if e.options.Unprivileged { // it goes with its session
		dir = ""
	}
	e.history = history.Open(dir, e.log)
	if err := e.restore(); err != nil {
		return err
	}
	e.recallHost()
	began := make(map[string]time.Time)
	for _, s := range e.all() {
		began[s.id()] = s.created
	}
	e.history.End(began)
	return nil
}

// Run compares pages and ledgers with what they should be, until ctx ends. Then it closes the enforcer, and leaves
// the slices as they are: the next enforcer takes them up.
func (e *Enforcer) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	if e.truth != nil {
		for _, d := range e.truth.devices {
			loops.Go(func() { e.newSampler(d).run(ctx) })
		}
	}
	loops.Go(func() { e.keepTime(ctx) })
	if e.movesElastic() {
		loops.Go(func() { e.runElastic(ctx) })
	}
	if e.options.HostMemory != nil {
		loops.Go(func() { e.keepHost(ctx) })
	}
	loops.Go(func() { e.history.Run(ctx) })
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case due := <-ticker.C:
			for _, s := range e.all() {
				s.check()
				e.answerDamage(ctx, s)
			}
			for _, p := range e.allPools() {
				p.check()
			}
			e.listenLater()
			e.checkedAt(due)
		case <-ctx.Done():
		}
	}
	e.ending.Store(true)
	e.events.Close() // first, so that whoever follows them does not hold up the end
	loops.Wait()
	e.ends.Wait()
	return e.Close()
}

// Close lets go of everything but the slices themselves.
func (e *Enforcer) Close() error {
	if !e.close() {
		return nil
	}
	e.ending.Store(true)
	e.events.Close()
	for _, s := range e.all() {
		s.mu.Lock()
		s.noteNeeds()
		s.mu.Unlock()
	}
	if e.native != nil {
		e.native.Close()
	}
	var errs []error
	// First the watchers: nobody is told of a death any more, so nothing below is undone by one.
	if e.deaths != nil {
		errs = append(errs, e.deaths.Close())
	}
	if e.cgroups != nil {
		errs = append(errs, e.cgroups.Close())
	}
	for {
		all := e.allPools() // first: they keep what is charged there for members
		if len(all) == 0 {
			break
		}
		for _, p := range all {
			p.turn.Wait()
			e.strikePool(p)
			p.leave()
			p.turn.Give()
		}
	}
	for {
		all := e.allOfAnyKind() // those that are being registered come again
		if len(all) == 0 {
			break
		}
		for _, s := range all {
			s.turn.Wait()
			if e.forget(s) {
				s.leave()
			}
			s.turn.Give()
		}
	}
	if e.options.HostMemory != nil {
		errs = append(errs, e.options.HostMemory.Close())
	}
	if e.store != nil {
		errs = append(errs, e.store.Close())
	}
	if e.history != nil {
		e.history.Write()
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	return errors.Join(errs...)
}

// ErrClosed is returned by an enforcer that was closed. Its slices go on, and the next one answers: so nothing failed.
var ErrClosed error = closedError{api.Errorf(api.CodeBusy, "the enforcer is stopping: ask again")}

// closedError is busy, and no other that is busy is it.
type closedError struct{ error }

func (c closedError) Unwrap() error { return c.error }

// CountWith sets where events are counted from now on.
func (e *Enforcer) CountWith(c Counter) { e.counter.Store(&c) }

// count calls f if somebody counts.
func (e *Enforcer) count(f func(Counter)) {
	if c := e.counter.Load(); c != nil {
		f(*c)
	}
}

// told hands an event on. The log calls it, one event after the other.
func (e *Enforcer) told(of string, event api.Event) {
	if e.options.Event != nil {
		if of == sourceRoot {
			of = sourceOperator
		}
		e.options.Event(of, event)
	}
	e.count(func(c Counter) { c.Told(event) })
}

// Info about the enforcer.
func (e *Enforcer) Info(context.Context) (api.Info, error) {
	info := api.Info{Version: api.Version, Truth: "nvml", Enforcement: cmp.Or(e.options.Enforcement, api.Auto), BootID: e.boot, PID: os.Getpid(), Instance: e.events.Instance()}
	if e.truth == nil {
		info.Truth = e.options.NoTruth
	} else {
		info.Driver = e.truth.version
	}
	return info, nil
}
