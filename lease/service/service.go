// SPDX-License-Identifier: Apache-2.0

// Package service gives users leases: it registers a slice with the enforcer for each, starts a broker in it, and ends both.
//
// The package owns the leases' directories and tokens, and the brokers' cgroups and user ids. The enforcer owns a lease's
// quota and expiry: at the expiry it ends the broker like any process of a slice, and the service removes the rest. After
// another end it starts the next broker in the same slice, which ends with the lease's cgroup. Brokers outlive the service; the next
// one adopts them by the lease's record.
//
// The package must never touch the driver, nor leave anything of a lease that it failed to acquire.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/report/lines"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/broker"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Enforcer is the part of the enforcer's API that the service uses.
type Enforcer interface {
	Devices(ctx context.Context) ([]api.Device, error)
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	Slices(ctx context.Context) ([]api.Slice, error)
	Events(ctx context.Context, instance string, since uint64, follow bool, each func(api.Event) error) error
}

// Options configure a Service. All are required unless noted otherwise.
type Options struct {
	Enforcer Enforcer
	Dir      string // of the leases' directories
	Broker   string // path of the program
	Cgroup   string // parent of the brokers' cgroups, relative to each hierarchy's root
	Bounds   Bounds // of each broker

	FirstUID, LastUID uint32 // of brokers, inclusive
	MaxLeases         int
	MaxClients        int    // per lease
	CodeBytes         uint64 // of overhead, for code
	LoadTimeout       time.Duration
	// Limits returns the users' limits of the current configuration.
	Limits func() []session.Limit
	// Operator reports whether a member of these groups has no limits, like root. nil: only root.
	Operator func(groups []uint32) bool
	Log      *slog.Logger
	// TLS is required for ServeRemote, and may otherwise be nil.
	TLS *TLSFiles
}

const (
	// interval is the time between checks for expired leases, and of all leases while the enforcer's events are unavailable.
	interval = time.Second
	// startTimeout limits a broker's start: creating a context takes seconds on a busy device.
	startTimeout = 60 * time.Second
	// askTimeout limits requests to the enforcer.
	askTimeout = 5 * time.Second
	// endTimeout limits the wait for killed processes. One blocked in a system call may end later.
	endTimeout = 10 * time.Second
	// exitGrace is the time from SIGTERM to SIGKILL. A broker notifies its clients, and exits by itself after broker.Farewell.
	exitGrace = 2 * broker.Farewell
	// maxEnded is the number of ended leases that are remembered.
	maxEnded = 1024
	// contextBytes is the assumed size of a context on a device where the enforcer has not measured it.
	contextBytes = 600 << 20
)

// Service manages the leases of a host.
type Service struct {
	Options
	cgroups      *cgroups
	certificates *certificates
	deaths       *process.Watcher
	counts       counts
	ending       sync.WaitGroup
	supervisors  sync.WaitGroup
	live         context.Context // ends with the service; leases continue
	quit         context.CancelFunc
	remote       atomic.Pointer[remoteListener] // nil: clients on other machines are not served
	users        session.HostUsers
	changes      *session.Pace
	calls        *pace.Users
	questions    atomic.Uint64

	mu       sync.Mutex // guards all below
	leases   map[string]*lease
	lastUID  uint32
	ended    []*leasepb.Lease     // oldest first
	acquires map[uint32]*acquires // by user
	logs     map[uint32]*slog.Logger
}

// New adopts the leases of a former service, and ends those without a living process.
func New(o Options) (*Service, error) {
	if err := checkUIDs(o.FirstUID, o.LastUID); err != nil {
		return nil, err
	}
	var certificates *certificates
	if o.TLS != nil {
		var err error
		if certificates, err = openCertificates(*o.TLS, o.Log); err != nil {
			return nil, err
		}
	}
	if err := durable.MakePrivate(o.Dir, 0o711); err != nil {
		return nil, err
	}
	// Users must not list others' leases.
	if err := os.Chmod(o.Dir, 0o711); err != nil {
		return nil, err
	}
	cgroups, err := openCgroups(o.Cgroup, o.Bounds, o.Log)
	if err != nil {
		return nil, err
	}
	deaths, err := process.NewWatcher()
	if err != nil {
		return nil, err
	}
	s := &Service{Options: o, cgroups: cgroups, certificates: certificates, deaths: deaths, leases: make(map[string]*lease), lastUID: o.LastUID, counts: newCounts(), changes: session.Changes(), calls: newCalls()}
	s.live, s.quit = context.WithCancel(context.Background())
	s.counts.registry.MustRegister(&sessions{s.active, s.stats}, &remoteClients{&s.remote})
	if err := s.takeUp(); err != nil {
		return nil, errors.Join(err, deaths.Close())
	}
	return s, nil
}

// Run manages the leases until ctx ends. Brokers continue after that.
func (s *Service) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.quit()
			watching.Wait()
			s.supervisors.Wait()
			s.ending.Wait()
			return s.deaths.Close()
		case <-ticker.C:
			for _, l := range s.all() {
				if l.isOver() {
					s.check(ctx, l)
				}
			}
		}
	}
}

// watch checks each lease on an event of its slice, and all leases each interval while events are unavailable.
func (s *Service) watch(ctx context.Context) {
	var instance string
	var since uint64
	log := lines.Bound(s.Log)
	for ctx.Err() == nil {
		s.checkAll(ctx)
		err := s.Enforcer.Events(ctx, instance, since, true, func(e api.Event) error {
			if e.Kind != api.EventMissed || e.Cause == api.MissedRestarted {
				instance = e.Instance
			}
			since = e.Seq
			switch e.Kind {
			case api.EventMissed:
				s.checkAll(ctx)
			case api.EventReleased, api.EventExpired, api.EventChanged:
				for _, l := range s.all() {
					if l.ID != e.Slice {
						continue
					}
					if e.Kind == api.EventExpired { // the slice may be gone by now
						s.endAside(l, reasonExpired)
					} else {
						s.check(ctx, l)
					}
				}
			}
			return nil
		})
		if ctx.Err() == nil && !errors.Is(err, api.ErrUnreachable) {
			log.Warn("the enforcer's events cannot be followed: leases are checked each interval instead", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

func (s *Service) checkAll(ctx context.Context) {
	for _, l := range s.all() {
		s.check(ctx, l)
	}
}

// check ends a lease that has expired or has lost its slice.
func (s *Service) check(ctx context.Context, l *lease) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	question := s.question()
	slice, err := s.Enforcer.Slice(ctx, l.ID)
	switch {
	case errors.Is(err, api.ErrNotFound) || err == nil && slice.Generation != l.Generation:
		s.endAside(l, l.whyGone())
		return
	case err == nil && slice.State == api.Expired:
		s.endAside(l, reasonExpired)
		return
	case err == nil:
		l.recordAnswer(question, slice)
	}
	if l.isOver() { // the enforcer did not report a renewal
		s.endAside(l, reasonExpired)
	}
}

func (s *Service) all() []*lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*lease
	for _, l := range s.leases {
		if l.serving {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lease) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Acquire acquires a lease, and returns when its broker serves. On failure nothing is left.
func (s *Service) Acquire(ctx context.Context, who Peer, r *leasepb.AcquireRequest) (*leasepb.Lease, error) {
	message, err := s.acquire(ctx, who, r)
	if err != nil {
		s.counts.failed()
		s.logOf(who.UID).Info("lease refused", "uid", who.UID, "remote", who.remote, "bytes", r.GetVram(), "err", err)
	}
	return message, err
}

func (s *Service) acquire(ctx context.Context, who Peer, r *leasepb.AcquireRequest) (*leasepb.Lease, error) {
	if err := s.checkRequest(r); err != nil {
		return nil, err
	}
	leave, err := s.admit(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	devices, err := s.Enforcer.Devices(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	device, err := s.choose(devices, r.GetDevice(), r.GetVram())
	if err != nil {
		return nil, err
	}
	l := s.newLease(record{
		ID: newID(), UID: who.UID, GID: who.gid(), Device: device.UUID, DeviceName: device.Name, Capability: device.ComputeCapability, VRAM: r.GetVram(), Overhead: s.overhead(device),
		Reserved: r.GetReserve(), Tenant: r.GetTenant(),
	})
	if err := s.enter(l); err != nil {
		return nil, err
	}
	killpoint.Pass("acquire.entered")
	if err := s.begin(ctx, l, who, r); err != nil {
		s.end(l, "it could not be acquired: "+err.Error())
		return nil, refusal(err)
	}
	s.Log.Info("lease acquired", "lease", l.ID, "uid", who.UID, "remote", who.remote, "device", l.Device, "bytes", l.VRAM, "overhead", l.Overhead, "tenant", l.Tenant,
		"pid", l.PID, "broker_uid", l.BrokerUID)
	message := s.show(ctx, l)
	killpoint.Pass("acquire.done")
	return message, nil
}

// enter adds a lease to the table, and assigns its broker's user id.
func (s *Service) enter(l *lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases) >= s.MaxLeases {
		return failed(leasepb.Code_REFUSED, "drop one, or ask the operator for more (max_leases)", "there are %d leases, the limit of this service", len(s.leases))
	}
	used := make(map[uint32]bool)
	for _, other := range s.leases {
		used[other.BrokerUID] = true
	}
	uid, err := nextUID(s.FirstUID, s.LastUID, s.lastUID, used)
	if err != nil {
		return failed(leasepb.Code_REFUSED, "choose another range (uids in [leases] of the configuration)", "%v", err)
	}
	l.BrokerUID, s.lastUID = uid, uid
	s.leases[l.ID] = l
	return nil
}

// Renew sets the remaining time of a lease.
func (s *Service) Renew(ctx context.Context, who Peer, r *leasepb.RenewRequest) (*leasepb.Lease, error) {
	ttl, err := ttlOf(r.GetTtl())
	if err != nil {
		return nil, err
	}
	if r.GetTtl() == nil {
		return nil, invalid("the request has no ttl: give the lease's new time to live, counted from now")
	}
	l, err := s.ownLease(who, r.GetId())
	if err != nil {
		return nil, err
	}
	if !s.unlimited(who) {
		if err := s.changes.Change(who.UID); err != nil {
			return nil, refusal(err)
		}
	}
	renewed, err := s.Enforcer.Renew(ctx, l.ID, api.RenewRequest{TTL: &ttl})
	if errors.Is(err, api.ErrExpired) || errors.Is(err, api.ErrNotFound) {
		return nil, failed(leasepb.Code_LEASE_EXPIRED, "acquire another one", "lease %s has expired", l.ID)
	}
	if err != nil {
		return nil, refusal(err)
	}
	killpoint.Pass("renew.done")
	l.recordAnswer(s.question(), renewed) // an answer to an earlier question may be from before the renewal
	s.counts.renewed()
	return s.show(ctx, l), nil
}

// Drop ends a lease. It returns when the broker has ended and its memory is free.
func (s *Service) Drop(_ context.Context, who Peer, r *leasepb.DropRequest) (*leasepb.Lease, error) {
	l, err := s.ownLease(who, r.GetId())
	if err != nil {
		return nil, err
	}
	return s.end(l, reasonDropped), nil // even if the caller has disconnected
}

// List returns the caller's active leases, or all of them for root; with ended also those that Show remembers, first.
func (s *Service) List(ctx context.Context, who Peer, ended bool) []*leasepb.Lease {
	var list []*leasepb.Lease
	if ended {
		s.mu.Lock()
		list = slices.DeleteFunc(slices.Clone(s.ended), func(l *leasepb.Lease) bool { return !who.may(l.GetUid()) })
		s.mu.Unlock()
	}
	all := slices.DeleteFunc(s.all(), func(l *lease) bool { return !who.may(l.UID) })
	if len(all) == 0 {
		return list
	}
	question := s.question()
	found, err := s.Enforcer.Slices(ctx)
	for _, l := range all {
		i := slices.IndexFunc(found, func(f api.Slice) bool { return f.ID == l.ID && f.Generation == l.Generation })
		if err == nil && i >= 0 {
			l.recordAnswer(question, found[i])
		}
		list = append(list, l.toMessage())
	}
	return list
}

// Show returns a lease, for some time also after its end.
func (s *Service) Show(ctx context.Context, who Peer, id string) (*leasepb.Lease, error) {
	l, err := s.ownLease(who, id)
	if err == nil {
		return s.show(ctx, l), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ended := range s.ended {
		if ended.GetId() == id && who.may(ended.GetUid()) {
			return ended, nil
		}
	}
	return nil, err
}

// ownLease returns an active lease of the user. It does not reveal whether others' leases exist.
func (s *Service) ownLease(who Peer, id string) (*lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil && l.serving && who.may(l.UID) {
		return l, nil
	}
	for _, ended := range s.ended {
		if ended.GetId() == id && who.may(ended.GetUid()) {
			return nil, failed(leasepb.Code_LEASE_EXPIRED, "acquire another one", "lease %s has ended: %s", id, ended.GetReason())
		}
	}
	return nil, failed(leasepb.Code_NOT_FOUND, "`gpuslice lease list` lists yours", "you have no lease %.80q", id)
}

// show returns the lease after querying the enforcer.
func (s *Service) show(ctx context.Context, l *lease) *leasepb.Lease {
	question := s.question()
	if slice, err := s.Enforcer.Slice(ctx, l.ID); err == nil && slice.Generation == l.Generation {
		l.recordAnswer(question, slice)
	}
	return l.toMessage()
}

// question numbers a question to the enforcer about leases.
func (s *Service) question() uint64 { return s.questions.Add(1) }

func (s *Service) dirOf(id string) string { return filepath.Join(s.Dir, id) }

// overhead returns the bytes that a broker's context and code take on a device.
func (s *Service) overhead(d *api.Device) uint64 {
	return cmp.Or(d.Context, contextBytes) + s.CodeBytes
}

// choose returns the named device, or the one with the most room if name is "". It skips devices that are smaller than a
// lease of vram bytes.
func (s *Service) choose(devices []api.Device, name string, vram uint64) (*api.Device, error) {
	if len(devices) == 0 {
		return nil, failed(leasepb.Code_REFUSED, "see `gpuslice devices`", "the enforcer knows no device")
	}
	if name != "" {
		devices = slices.DeleteFunc(devices, func(d api.Device) bool { return d.UUID != name && (d.Index < 0 || fmt.Sprint(d.Index) != name) })
		if len(devices) == 0 {
			return nil, failed(leasepb.Code_INVALID_REQUEST, "`gpuslice devices` lists them", "there is no device %.80q: a UUID or an index is accepted", name)
		}
	}
	largest := slices.MaxFunc(devices, func(a, b api.Device) int { return cmp.Compare(s.most(&a), s.most(&b)) })
	devices = slices.DeleteFunc(devices, func(d api.Device) bool { return vram > s.most(&d) })
	if len(devices) == 0 {
		return nil, failed(leasepb.Code_INVALID_REQUEST, "", "vram is %s, and %s (%s) has %s, of which the broker's context and code take %s: up to %s are accepted",
			api.FormatSize(vram), largest.Name, largest.UUID, api.FormatSize(largest.Total), api.FormatSize(s.overhead(&largest)), api.FormatSize(s.most(&largest)))
	}
	best := slices.MaxFunc(devices, func(a, b api.Device) int { return cmp.Compare(room(&a), room(&b)) })
	return &best, nil
}

// most returns the vram of the largest lease that a device can hold.
func (s *Service) most(d *api.Device) uint64 {
	return d.Total - min(d.Total, d.Reserve+s.overhead(d))
}

func room(d *api.Device) uint64 {
	if d.Free != nil {
		return *d.Free
	}
	return d.Total - min(d.Total, d.Quotas)
}
