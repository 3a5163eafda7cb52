// SPDX-License-Identifier: Apache-2.0

// Package claim prepares the claims of a node for the kubelet and collects abandoned ones.
//
// Each request of a claim becomes a pool of the enforcer with the request's quota on each device, shared by all its containers
// and pods. The state of a claim is its CDI specification and its pools. The file is written before the first pool and removed
// after the last, so the remains of a killed driver have a file or are pools without one. All calls are idempotent.
package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/cdi"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

// Enforcer is the part of the enforcer's API that Preparer uses.
type Enforcer interface {
	Devices(ctx context.Context) ([]api.Device, error)
	Pools(ctx context.Context) ([]api.Pool, error)
	CreatePool(ctx context.Context, name string, r api.PoolRequest) (api.Pool, error)
	DeletePool(ctx context.Context, name string) (api.Pool, error)
}

// Times are the timeouts of a Preparer. Tests use shorter ones.
type Times struct {
	Prepare   time.Duration // limit of Prepare's retries; the kubelet retries only after a minute
	Unprepare time.Duration // limit of Unprepare's wait for members to end
	Retry     time.Duration // pause between two attempts
}

// DefaultTimes are well below the kubelet's timeout of 45 seconds for a call.
var DefaultTimes = Times{Prepare: 30 * time.Second, Unprepare: 10 * time.Second, Retry: 250 * time.Millisecond}

// Preparer prepares claims. It is safe for concurrent use; calls for the same claim are serialized.
type Preparer struct {
	Enforcer Enforcer
	Writer   *cdi.Writer
	Host     *cdi.Host
	Times    Times
	Log      *slog.Logger

	turns turns
}

type share struct {
	pool    string
	request api.PoolRequest
	results []resourceapi.DeviceRequestAllocationResult
}

// PoolName returns the name of the pool of a claim's nth request.
func PoolName(uid types.UID, n int) string {
	return fmt.Sprintf("%s%s-%d", inventory.PoolPrefix, uid, n)
}

// PoolOf returns the name of the pool of a claim's request, or "" if the request has no device of this driver.
func PoolOf(c *resourceapi.ResourceClaim, request string) string {
	var before []string
	for _, r := range c.Status.Allocation.Devices.Results {
		switch {
		case r.Driver != config.Driver:
		case r.Request == request:
			return PoolName(c.UID, len(before))
		case !slices.Contains(before, r.Request):
			before = append(before, r.Request)
		}
	}
	return ""
}

// ClaimOf returns the UID of the claim that owns a pool, or "".
func ClaimOf(pool string) types.UID {
	rest, ours := strings.CutPrefix(pool, inventory.PoolPrefix)
	end := strings.LastIndexByte(rest, '-')
	if !ours || end != 36 { // the length of a UID
		return ""
	}
	return types.UID(rest[:end])
}

// shares returns a claim's requests for this driver, in the order of the allocation's results.
func shares(c *resourceapi.ResourceClaim) ([]share, error) {
	var all []share
	index := make(map[string]int)
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != config.Driver {
			continue
		}
		if r.AdminAccess != nil && *r.AdminAccess {
			// The scheduler does not count it and reports the whole device as consumed: such a pool would take memory from other
			// claims.
			return nil, fmt.Errorf("request %s has adminAccess, which is not accepted: a device of %s is a quota, and has nothing to administer", r.Request, config.Driver)
		}
		i, known := index[r.Request]
		if !known {
			cfg, err := config.ForRequest(c, r.Request)
			if err != nil {
				return nil, err
			}
			i = len(all)
			index[r.Request] = i
			all = append(all, share{pool: PoolOf(c, r.Request), request: api.PoolRequest{
				Tenant: cfg.Tenant, TTL: cfg.TTL, Label: c.Namespace + "/" + c.Name, Elastic: cfg.Elastic, Priority: cfg.Priority, ByGrant: true,
			}})
		}
		switch elastic := inventory.IsElastic(r.Device); {
		case elastic && !all[i].request.Elastic:
			return nil, fmt.Errorf("request %s was allocated %s, a device for elastic claims, but its configuration is not elastic: use the DeviceClass elastic.gpuslice.io, or vram.gpuslice.io for the other devices",
				r.Request, r.Device)
		case !elastic && all[i].request.Elastic:
			return nil, fmt.Errorf("request %s is elastic by its configuration, but device %s is not for elastic claims: use the DeviceClass elastic.gpuslice.io", r.Request, r.Device)
		}
		memory := r.ConsumedCapacity[inventory.Memory]
		if memory.Value() <= 0 {
			return nil, fmt.Errorf("request %s was allocated device %s without any %s: the feature DRAConsumableCapacity must be on in the cluster", r.Request, r.Device, inventory.Memory)
		}
		all[i].add(r, uint64(memory.Value()))
	}
	return all, nil
}

// add adds a device. A request with a count may have several shares of one device.
func (s *share) add(r resourceapi.DeviceRequestAllocationResult, bytes uint64) {
	s.results = append(s.results, r)
	uuid := inventory.UUID(r.Device)
	for i := range s.request.Quotas {
		if s.request.Quotas[i].Device == uuid {
			s.request.Quotas[i].Bytes += bytes
			return
		}
	}
	s.request.Quotas = append(s.request.Quotas, api.Quota{Device: uuid, Bytes: bytes})
}

// Prepare prepares a claim for all of its containers.
func (p *Preparer) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	give, err := p.turns.take(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	defer give()
	all, err := shares(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Times.Prepare)
	defer cancel()
	var known []api.Device
	err = p.retry(ctx, passing, func() (err error) {
		if known, err = p.Enforcer.Devices(ctx); err != nil {
			return err
		}
		return room(all, known)
	})
	if err != nil {
		return nil, sentence(err)
	}
	devices, files, err := p.devices(all, known)
	if err != nil {
		return nil, err
	}
	owner := cdi.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	if err := p.Writer.Write(owner, files); err != nil {
		return nil, err
	}
	for _, s := range all {
		if err := p.retry(ctx, passing, func() error { return p.ensure(ctx, s) }); err != nil {
			return nil, sentence(err)
		}
	}
	return devices, nil
}

// room returns an error if programs outside slices hold memory that was allocated to new pools. The enforcer counts quotas alone,
// so the pod would start and be refused memory by NVIDIA's driver.
func room(all []share, known []api.Device) error {
	asks := make(map[string]uint64) // by device
	for _, s := range all {
		for _, q := range s.request.Quotas {
			n := slices.IndexFunc(known, func(d api.Device) bool { return d.UUID == q.Device })
			if n < 0 || known[n].Free == nil || s.request.Elastic {
				continue // for others to decide
			}
			d := known[n]
			if _, made := d.Pools[s.pool]; made {
				continue
			}
			asks[d.UUID] += q.Bytes
			has := *d.Free
			if d.Elastic != nil {
				has += d.Elastic.Idle
			}
			if left := has - min(has, inventory.Outside(d)); asks[d.UUID] <= has && asks[d.UUID] > left {
				return api.Errorf(api.CodeQuotaExceeded, "the claim asks for %s on device %s, of which programs outside of slices hold %s and %s are left: wait until they end (`gpuslice devices` on the node names them), or ask for less",
					size(asks[d.UUID]), d.UUID, api.FormatSize(d.OutsideUsed), size(left))
			}
		}
	}
	return nil
}

// size formats bytes, rounded down to MiB, as a claim may ask for them.
func size(bytes uint64) string {
	return resource.NewQuantity(int64(bytes>>20<<20), resource.BinarySI).String()
}

// devices returns the devices for the kubelet and for the CDI specification.
func (p *Preparer) devices(all []share, known []api.Device) (devices []kubeletplugin.Device, files []cdi.Share, err error) {
	for _, s := range all {
		file := cdi.Share{Pool: s.pool}
		seen := make(map[string]bool)
		for i, r := range s.results {
			d := kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID}
			uuid := inventory.UUID(r.Device)
			n := slices.IndexFunc(known, func(d api.Device) bool { return d.UUID == uuid })
			if n < 0 {
				return nil, nil, fmt.Errorf("device %s, allocated to request %s, is not known to gpusliced on this node: `gpuslice devices` lists its devices", uuid, r.Request)
			}
			if !seen[uuid] {
				seen[uuid] = true
				gpu := cdi.GPU{UUID: uuid, Index: known[n].Index, Minor: -1}
				if known[n].Minor != nil {
					gpu.Minor = *known[n].Minor
				}
				if id := p.Host.Device(gpu); id != "" {
					d.CDIDeviceIDs = append(d.CDIDeviceIDs, id)
				} else if err := gpu.Direct(); err != nil {
					return nil, nil, err
				} else {
					file.GPUs = append(file.GPUs, gpu)
				}
			}
			if i == 0 { // a runtime runs the hook for each mention, so name it once per request
				d.CDIDeviceIDs = append(d.CDIDeviceIDs, cdi.DeviceID(s.pool))
			}
			devices = append(devices, d)
		}
		files = append(files, file)
	}
	return devices, files, nil
}

// ensure creates a pool or keeps one in use, with quotas that an operator may have changed. It replaces an unused one, which may
// be of an earlier allocation of the claim.
func (p *Preparer) ensure(ctx context.Context, s share) error {
	_, err := p.Enforcer.CreatePool(ctx, s.pool, s.request)
	if !errors.Is(err, api.ErrExists) {
		return err
	}
	pools, err := p.Enforcer.Pools(ctx)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(pools, func(pool api.Pool) bool { return pool.Name == s.pool })
	if n < 0 {
		return api.ErrRunning // deleted in between
	}
	if pool := pools[n]; len(pool.Members) > 0 || pool.ProcessCount > 0 {
		if on(pool.Quotas, s.request.Quotas) {
			return nil
		}
		return api.Errorf(api.CodeRunning, "pool %s belongs to an earlier allocation of the claim on other devices, and containers still use it", s.pool)
	}
	if _, err := p.Enforcer.DeletePool(ctx, s.pool); err != nil && !errors.Is(err, api.ErrNotFound) {
		return err
	}
	_, err = p.Enforcer.CreatePool(ctx, s.pool, s.request)
	return err
}

// on reports whether a and b have quotas on the same devices.
func on(a, b []api.Quota) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(q api.Quota) bool {
		return !slices.ContainsFunc(b, func(other api.Quota) bool { return other.Device == q.Device })
	})
}

// Unprepare reverts Prepare. While the enforcer is unreachable it leaves the pools to Collect, so that the pod can end.
func (p *Preparer) Unprepare(ctx context.Context, uid types.UID) error {
	give, err := p.turns.take(ctx, uid)
	if err != nil {
		return err
	}
	defer give()
	ctx, cancel := context.WithTimeout(ctx, p.Times.Unprepare)
	defer cancel()
	err = p.retry(ctx, members, func() error { return p.drop(ctx, uid) })
	if errors.Is(err, api.ErrUnreachable) {
		p.Log.Warn("claim unprepared while the enforcer does not answer: its pools are deleted once it answers", "claim", uid, "err", err)
	} else if err != nil {
		return err
	}
	return p.Writer.Remove(uid)
}

func (p *Preparer) drop(ctx context.Context, uid types.UID) error {
	pools, err := p.Enforcer.Pools(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, pool := range pools {
		if ClaimOf(pool.Name) != uid {
			continue
		}
		if _, err := p.Enforcer.DeletePool(ctx, pool.Name); err != nil && !errors.Is(err, api.ErrNotFound) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// passing reports whether an error of Prepare may be temporary: the enforcer is restarting or busy, its disk is full, or an ended
// claim still holds memory.
func passing(err error) bool {
	var e *api.Error
	return errors.Is(err, api.ErrUnreachable) || errors.Is(err, api.ErrQuotaExceeded) || errors.Is(err, api.ErrRunning) ||
		errors.As(err, &e) && (e.Code == api.CodeBusy || e.Code == api.CodeStorage)
}

// members reports whether an error may end with the pool's members.
func members(err error) bool {
	return errors.Is(err, api.ErrRunning)
}

// retry calls try until it succeeds, fails permanently, or ctx ends; then it returns the last error before the end.
func (p *Preparer) retry(ctx context.Context, passes func(error) bool, try func() error) error {
	var last error
	end, limited := ctx.Deadline()
	for {
		err := try()
		// A call may fail by the deadline before ctx.Err is set.
		if last != nil && (ctx.Err() != nil || limited && !time.Now().Before(end)) {
			return last // rather than the timeout
		}
		if err == nil || !passes(err) {
			return err
		}
		last = err
		select {
		case <-ctx.Done():
			return last
		case <-time.After(p.Times.Retry):
		}
	}
}

// sentence adds context to an error for the pod's event. ErrUnreachable itself names the socket and what to do.
func sentence(err error) error {
	if errors.Is(err, api.ErrUnreachable) {
		return fmt.Errorf("no claim of %s can be prepared on this node: %w", config.Driver, err)
	}
	return err
}

// turns serializes the calls for each claim.
type turns struct {
	mu    sync.Mutex
	taken map[types.UID]*turn
}

type turn struct {
	slot  chan struct{}
	users int
}

func (t *turns) take(ctx context.Context, uid types.UID) (give func(), err error) {
	t.mu.Lock()
	if t.taken == nil {
		t.taken = make(map[types.UID]*turn)
	}
	it := t.taken[uid]
	if it == nil {
		it = &turn{slot: make(chan struct{}, 1)}
		t.taken[uid] = it
	}
	it.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if it.users--; it.users == 0 {
			delete(t.taken, uid)
		}
	}
	select {
	case it.slot <- struct{}{}:
		return func() { <-it.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
