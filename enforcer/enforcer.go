// SPDX-License-Identifier: Apache-2.0

// Package enforcer is the one authority on which slices exist. It owns their registration, directories, attach sockets and ledgers, settles
// the lanes of exited processes, and samples driver truth. gpusliced runs it, and `gpuslice run` embeds it.
//
// It must never:
//
//   - answer a request before the store has the result: a restart must find every promised slice;
//   - trust a process's claim about itself (the kernel decides), or read back from a ledger what the enforcer itself writes there (its
//     copy in memory counts);
//   - delay a charge: attached processes continue while the enforcer is down.
//
// A slice's or pool's turn (registry.go) orders its changes, and may be held over the disk and the driver. A slice's turn is taken before its
// pool's. Locks guard memory only, and are never held over a wait (package guard).
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
	"github.com/gpuslice/gpuslice/enforcer/core"
	"github.com/gpuslice/gpuslice/enforcer/devices"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/event"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/history"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/mover"
	"github.com/gpuslice/gpuslice/enforcer/native"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/recovery"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/enforcer/store"
	"github.com/gpuslice/gpuslice/hostmem"
)

// Truth is the enforcer's interface to the driver.
type Truth = devices.Source

// DefaultContextBytes is about the memory that a first context takes on a large device.
const DefaultContextBytes = 512 << 20

// Counter counts what happens, for metrics.
type Counter interface {
	Registered(code api.Code, took time.Duration) // "" on success
	Released(cause string)
	Attached(result string)
	Bypassed(action string) // memory beyond the ledger was found, with this action
	Joined(result string)
	Allocated(n uint64) // allocations of all processes
	Told(api.Event)     // must not wait
}

// Options of an enforcer.
type Options struct {
	RunDir   string // slices' directories and records, best in memory; only the enforcer may have write access
	StateDir string // state that survives a reboot: pools, and the learned cost of contexts
	Library  string // the installed interceptor
	// ContextBytes is charged for a process's first context on a device until the real cost is learned. 0 is DefaultContextBytes.
	ContextBytes uint64
	// Interval is the time between samples of driver truth, and between checks of each ledger. 0 is a second.
	Interval time.Duration
	// SettleTime and ExitGrace are package truth's; an unchanged device is listed again after IdleInterval. 0 are 5 s, 100 ms and 10 s.
	SettleTime, ExitGrace, IdleInterval time.Duration

	Truth   Truth // nil if there is none; NoTruth then has the reason
	NoTruth string
	// Backend enforces limits by the driver, on devices where that works; nil if there is none. Enforcement is the operator's choice; "" is
	// api.Auto. With api.Native New fails where the driver does not enforce.
	Backend     native.Backend
	Enforcement api.Enforcement
	Checkpoint  mover.Checkpointer // nil: slices cannot be suspended
	HostMemory  mover.HostMemory   // nil: host memory of processes that move themselves is charged to their own cgroups
	Log         *slog.Logger
	// Caller returns the process that made the request of a context, as the kernel reports it; false if unknown. nil: only this process makes
	// requests.
	Caller    func(context.Context) (asker session.Asker, known bool)
	Admission admission.Limits // the zero value grants each byte of a device once
	Elastic   Elastic          // the zero value promises nothing to elastic slices
	Users     []session.Limit  // limits of users without privileges: the first match applies, and a user without one may begin no session
	Policy    Policy           // actions on processes with memory beyond the ledger; the zero value reports them
	// MaxTTL is the longest time to live, counted from each request, and the default; 0 is no bound. Grace is the time from SIGTERM to SIGKILL;
	// 0 is DefaultGrace.
	MaxTTL, Grace time.Duration
	// Clock is the time since boot, including the host's suspension. nil: CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Event receives all events in their order, each with its container or user, "" for the operator. It must not block. nil: not called.
	Event func(of string, e api.Event)
	// Checks returns further checks for Health. nil: none.
	Checks func() []api.Check
	// Unprivileged enforcers serve sessions of their own user only: no containers, and no restart.
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
	truth   *devices.Devices // nil without driver truth
	native  *native.Keeper   // where the driver enforces, too
	events  *event.Log
	history *history.Log
	book    *admission.Book // what is granted of each device, to which holders
	calls   calls
	ends    sync.WaitGroup // work in the background: forced ends of slices, the samplers' writes

	now         func() time.Duration // since boot
	timeChanged chan struct{}        // a deadline may be earlier than before
	mover       *mover.Mover
	observing   *guard.Turn   // observeAll
	stopping    chan struct{} // closed once: moves under way are left to the next enforcer
	stop        func()
	gates       ledger.Gates // of evicted slices

	lines    process.Lines
	guesses  *session.Pace // wrong tokens
	changes  *session.Pace // of users' sessions
	shares   userShares
	counter  atomic.Pointer[Counter]
	progress progress

	pages *recovery.Scan      // during restore
	deaf  map[*slice]struct{} // taken up without an attach socket; used by restore, and then by the regular check

	registry
}

// New opens the state, and takes up the slices that are still alive. It fails if another enforcer has the state open.
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
	e.calls.of, e.calls.holders = make(map[uint64]*call), make(map[uint64]adapter)
	e.stopping = make(chan struct{})
	e.stop = sync.OnceFunc(func() { close(e.stopping) })
	e.now, e.timeChanged, e.observing = options.Clock, make(chan struct{}, 1), guard.NewTurn()
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
	e.members.Deaths, e.members.Owned = e.deaths, func(pid int, uid uint32) bool { return ownedBy(pid, uid) }
	if e.host != nil {
		e.members.Membership = func(pid int) (cgroup.Membership, error) { return membershipOf(e.host, pid) }
	}
	if err := e.openTruth(); err != nil {
		return err
	}
	e.mover = e.newMover()
	elastic := &e.options.Elastic
	e.book = admission.New(core.Config{
		Limits: e.options.Admission, Devices: e.truth.Sizes(), MaxTTL: e.options.MaxTTL, Grace: e.options.Grace,
		Elastic: core.Elastic{MaxPriority: elastic.MaxPriority, Off: e.whyNotElastic(), Overcommit: elastic.Overcommit, MinResident: elastic.MinResident, Quantum: elastic.Quantum, Asking: 3 * returnPatience, Obstacle: obstacleLasts, Patience: elastic.Patience},
	})
	e.book.Do(func(a *core.Accounts) { a.At(e.now()) }) // when restored slices count as active
	if err := e.openNative(); err != nil {
		return err
	}
	dir := e.options.StateDir
	if e.options.Unprivileged { // the history ends with the session
		dir = ""
	}
	e.history = history.Open(dir, e.log)
	if err := e.restore(); err != nil {
		return err
	}
	e.mover.Recall()
	began := make(map[string]time.Time)
	for _, s := range e.all() {
		began[s.id()] = s.created
	}
	e.history.End(began)
	return nil
}

// Run checks and samples slices and pools until ctx ends. Then it closes the enforcer, and leaves the slices to the next one.
func (e *Enforcer) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	if e.truth != nil {
		for _, d := range e.truth.All() {
			loops.Go(func() { e.newSampler(d).run(ctx) })
		}
	}
	loops.Go(func() { e.keepTime(ctx) })
	if e.movesElastic() {
		loops.Go(func() { e.runElastic(ctx) })
	}
	if e.options.HostMemory != nil {
		loops.Go(func() { hostmem.Keep(ctx, e.options.HostMemory, e.log) })
	}
	loops.Go(func() { e.history.Run(ctx) })
	ticker := time.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case due := <-ticker.C:
			for _, s := range e.all() {
				s.check()
				e.answerDamage(s)
			}
			for _, p := range e.allPools() {
				p.check()
			}
			e.listenLater()
			e.checkedAt(due)
		case <-ctx.Done():
		}
	}
	e.stop()
	e.events.Close() // first, so that clients that follow events do not delay the end
	loops.Wait()
	e.ends.Wait()
	return e.Close()
}

func (e *Enforcer) isStopping() bool {
	select {
	case <-e.stopping:
		return true
	default:
		return false
	}
}

// Close closes everything but the slices themselves.
func (e *Enforcer) Close() error {
	if !e.close() {
		return nil
	}
	e.stop()
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
	// The watchers are closed first, so that no reported exit undoes what follows.
	if e.deaths != nil {
		errs = append(errs, e.deaths.Close())
	}
	if e.cgroups != nil {
		errs = append(errs, e.cgroups.Close())
	}
	for {
		all := e.allPools() // first: pools hold charges for members
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
		all := e.allOfAnyKind() // again, for slices that were being registered
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

// ErrClosed is the error of a closed enforcer. Its slices continue, and the next enforcer answers, so nothing has failed.
var ErrClosed error = closedError{api.Errorf(api.CodeBusy, "the enforcer is stopping: try again")}

// closedError has code busy, but differs from other busy errors.
type closedError struct{ error }

func (c closedError) Unwrap() error { return c.error }

// CountWith sets the receiver of counts.
func (e *Enforcer) CountWith(c Counter) { e.counter.Store(&c) }

func (e *Enforcer) count(f func(Counter)) {
	if c := e.counter.Load(); c != nil {
		f(*c)
	}
}

// told passes an event to Options.Event and the counter. The log calls it for one event at a time.
func (e *Enforcer) told(of string, event api.Event) {
	if e.options.Event != nil {
		if of == sourceRoot {
			of = sourceOperator
		}
		e.options.Event(of, event)
	}
	e.count(func(c Counter) { c.Told(event) })
}

// Info returns facts about the enforcer.
func (e *Enforcer) Info(context.Context) (api.Info, error) {
	info := api.Info{Version: api.Version, Truth: "nvml", Enforcement: cmp.Or(e.options.Enforcement, api.Auto), BootID: e.boot, PID: os.Getpid(), Instance: e.events.Instance()}
	if e.truth == nil {
		info.Truth = e.options.NoTruth
	} else {
		info.Driver = e.truth.Version()
	}
	return info, nil
}
