// SPDX-License-Identifier: Apache-2.0

// Package hook puts a container into its slice, and takes it out again. It is run by the OCI runtime, as root and
// in the host's namespaces, when the container's namespaces exist and its process has not started (prestart or
// createRuntime), and once more when the container is over (poststop).
//
// It asks the enforcer for the slice and binds it into the container. It keeps no state but a record of
// the files that it made to bind on (package roots). It must never leave a container running without the quota
// that was asked for: at prestart every failure is final, undoes what was done, and is said in one sentence.
// At poststop no failure is, since runc skips the poststop hooks of others after one that fails.
package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/enforcer/advice"
	"github.com/gpuslice/gpuslice/hook/annotations"
	"github.com/gpuslice/gpuslice/hook/mount"
	"github.com/gpuslice/gpuslice/hook/roots"
)

// Enforcer is what the hook asks of the enforcer.
type Enforcer interface {
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	// Release releases the slice id if it is of that generation, or of any if that is 0. Unless forced, it refuses while
	// processes of the slice are alive.
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
}

// Hook is one run of the hook.
type Hook struct {
	Enforcer Enforcer
	Policy   annotations.Policy
	Grant    annotations.Grant // by the command line
	// Records is where package roots keeps its records; its parent exists when the enforcer runs.
	Records string
	// Timing, unless nil, is told how long each part of Prestart took.
	Timing func(part string, took time.Duration)

	deadlines Deadlines
	wait      func() // before the enforcer is asked again; nil: it is asked once
}

// register asks for the slice, and again as long as nothing is carried out: while the enforcer is being replaced, or makes room.
func (h *Hook) register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	for begun := time.Now(); ; h.wait() {
		reply, err := h.Enforcer.Register(ctx, r)
		var patience time.Duration
		switch {
		case client.MayReturn(err):
			patience = h.deadlines.Replaced
		case errors.Is(err, api.ErrBusy):
			patience = h.deadlines.Busy
		}
		if h.wait == nil || time.Since(begun) >= patience {
			return reply, err
		}
	}
}

// Prestart registers the container and binds its slice.
//
// The order makes a kill harmless at every point: until Register answers, nothing was done. After it, the enforcer
// sees the container's init die, since a runtime whose hook was killed creates no container, and releases the
// slice. What was made in the root filesystem is on record before it is made, and the runtime runs the poststop hook
// also for a container that it failed to create; mounts die with their namespace.
func (h *Hook) Prestart(ctx context.Context, s specs.State) (err error) {
	lap := h.laps()
	bundle, err := ReadBundle(s.Bundle)
	if err != nil {
		return err
	}
	bundle.Own = h.Grant
	sandbox := bundle.IsSandbox()
	request, refusal := bundle.Request(h.Policy)
	if request == nil && (refusal == nil || !sandbox) {
		return refusal
	}
	if s.Pid <= 1 {
		return fmt.Errorf("the state of container %s has pid %d: prestart and createRuntime need that of its init", s.ID, s.Pid)
	}
	lap("read")
	container, err := mount.Open(s.Pid, bundle.Rootfs)
	if err != nil {
		return err
	}
	defer container.Close()
	nodes := container.GPUs()
	if sandbox && !bundle.GPUs.Reaches(nodes) {
		return nil
	}
	if refusal != nil {
		return fmt.Errorf("%w (that it is a pod's sandbox is its own word, and counts for one that can reach no GPU)", refusal)
	}
	if err := refuseSeccomp(bundle.Seccomp, bundle.Annotations); err != nil {
		return err
	}
	lap("enter")

	reply, err := h.register(ctx, api.RegisterRequest{
		ID: s.ID, Container: s.ID, PID: s.Pid,
		Quotas: request.Quotas, Mode: request.Mode, Pools: request.Pools, ByGrant: request.ByGrant, Tenant: request.Tenant, TTL: request.TTL,
		Elastic: request.Elastic, Priority: request.Priority,
		Visible: bundle.GPUs.Visible(nodes), Names: bundle.Names(s.ID),
	})
	if errors.Is(err, api.ErrExists) && len(request.Pools) > 0 {
		if h.again(ctx, s, request.Pools) {
			return nil
		}
		return fmt.Errorf("container %s has a slice that is not in pool %s alone: name all of its pools in the hooks of its config.json (%w)", s.ID, request.Pools, err)
	}
	if err != nil {
		return enforcerFailed(err)
	}
	lap("register")
	if err := h.bind(ctx, s, container, &bundle, reply); err != nil {
		// Not ctx: it may be what ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if _, e := h.Enforcer.Release(ctx, s.ID, reply.Slice.Generation, true); e != nil {
			err = fmt.Errorf("%w; its slice is left to the enforcer to clear away (%w)", err, e)
		}
		return err
	}
	lap("bind")
	return nil
}

// again says whether the container was registered with the same pools by another of its hooks. That one has bound its slice, too: after a hook
// that fails no other is run.
func (h *Hook) again(ctx context.Context, s specs.State, pools api.PoolNames) bool {
	has, err := h.Enforcer.Slice(ctx, s.ID)
	return err == nil && has.PID == s.Pid && slices.Equal(slices.Sorted(slices.Values(has.Pools)), slices.Sorted(slices.Values(pools)))
}

// bind makes the places to bind on, binds, and keeps the record of what was made.
func (h *Hook) bind(ctx context.Context, s specs.State, c *mount.Container, b *Bundle, reply api.RegisterReply) (err error) {
	record, err := roots.Lock(ctx, h.Records, c.Root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, record.Close()) }()
	if err := c.Inspect(); err != nil {
		return err
	}
	old := record.Made
	record.Root = b.Rootfs
	record.Join(roots.User{Slice: s.ID, Generation: reply.Slice.Generation, Dir: reply.Dir})
	record.Made = append(old[:len(old):len(old)], c.Missing()...)
	if err := record.Save(); err != nil {
		return err
	}
	made, err := c.Make()
	record.Made = append(old[:len(old):len(old)], made...)
	if err == nil && len(made) > 0 {
		err = record.Save()
	}
	if err == nil {
		err = c.Bind(mount.Source{Dir: reply.Dir, Library: reply.Library})
	}
	if err == nil {
		err = c.RefuseMasked(b.Masked)
	}
	if err != nil {
		record.Leave(s.ID)
		return errors.Join(err, tidy(record, b.Rootfs))
	}
	return nil
}

// Poststop releases the slice and removes what the hook made in the root filesystem, and in a few others whose poststop
// never ran. It does all that it can, and its error is for a log only.
func (h *Hook) Poststop(ctx context.Context, s specs.State) error {
	return errors.Join(h.poststop(ctx, s), h.sweep())
}

func (h *Hook) poststop(ctx context.Context, s specs.State) error {
	bundle, err := ReadBundle(s.Bundle)
	if err != nil {
		// Without the bundle there is no record either, but the slice can still go.
		return errors.Join(err, h.release(ctx, roots.User{Slice: s.ID}))
	}
	bundle.Own = h.Grant
	if request, err := bundle.Request(h.Policy); request == nil && err == nil {
		return nil
	}
	release := func(generation uint64) error {
		if generation == 0 && bundle.IsSandbox() {
			return nil // it was given no slice: there are many of them, and the enforcer need not hear of each
		}
		return h.release(ctx, roots.User{Slice: s.ID, Generation: generation})
	}
	var root unix.Stat_t
	if err := unix.Stat(bundle.Rootfs, &root); err != nil {
		// The engine unmounted it: nothing of ours is there any more.
		return release(0)
	}
	record, err := roots.Find(ctx, h.Records, mount.FileID{Dev: root.Dev, Inode: root.Ino})
	if errors.Is(err, os.ErrNotExist) {
		return release(0) // no prestart, or none that got so far
	}
	if err != nil {
		return errors.Join(err, release(0))
	}
	user := record.Leave(s.ID)
	return errors.Join(release(user.Generation), tidy(record, bundle.Rootfs), record.Close())
}

// release releases a slice whose container is over. With a generation on record it insists: the runtime has said that
// the container is over, and what its processes left running has no quota to draw on. Without one, which is a
// poststop that had no prestart, the slice of that id may be another's, and goes only if it is dead.
func (h *Hook) release(ctx context.Context, u roots.User) error {
	_, err := h.Enforcer.Release(ctx, u.Slice, u.Generation, u.Generation != 0)
	if err == nil || errors.Is(err, api.ErrNotFound) || u.Generation == 0 && errors.Is(err, api.ErrRunning) {
		return nil
	}
	return fmt.Errorf("release slice %s: %w", u.Slice, err)
}

// tidy removes what was made in a root filesystem, unless another slice uses it.
func tidy(record *roots.Record, rootfs string) (err error) {
	if len(record.Users) == 0 {
		record.Made, err = mount.Remove(rootfs, record.Made)
	}
	return errors.Join(err, record.Save())
}

// sweepAtMost is how many records of other roots a poststop looks at.
const sweepAtMost = 16

// sweep removes what is on record of containers that are over and had no poststop: their runtime was killed.
func (h *Hook) sweep() error {
	return roots.Sweep(h.Records, sweepAtMost, func(record *roots.Record) error {
		var root unix.Stat_t
		err := unix.Stat(record.Root, &root)
		if err != nil || record.Of() != (mount.FileID{Dev: root.Dev, Inode: root.Ino}) {
			record.Made = nil // the engine unmounted or removed the root
			return record.Save()
		}
		return tidy(record, record.Root)
	})
}

// enforcerFailed adds what to do to an error that only says what happened.
func enforcerFailed(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the enforcer did not answer in time: why is in " + advice.Log("gpusliced"))
	case errors.Is(err, os.ErrPermission) && rootless():
		return fmt.Errorf("a container of a rootless engine is given no quota, since its hook has its user's rights: have an engine that root runs start it, "+
			"or run the program by `gpuslice run` (%w)", err)
	}
	return err
}

// rootless says whether the hook was run in a user namespace, as engines of users do.
func rootless() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

func (h *Hook) laps() func(part string) {
	last := time.Now()
	return func(part string) {
		if h.Timing != nil {
			now := time.Now()
			h.Timing(part, now.Sub(last))
			last = now
		}
	}
}
