// SPDX-License-Identifier: Apache-2.0

// Package hook adds a container to its slice and removes it again. The OCI runtime runs it as root in the host's namespaces: at
// prestart or createRuntime, before the container's process starts, and at poststop.
//
// The hook requests the slice from the enforcer and binds it into the container. Its only state is a record of the mount points
// that it created (package roots). It must never leave a container running without the requested quota: a failure at prestart is
// final, rolled back, and reported in one sentence. A failure at poststop is only logged, since runc skips the remaining poststop
// hooks after one fails.
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

// Enforcer is the part of the enforcer's API that the hook uses.
type Enforcer interface {
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	// Release releases a slice of the given generation; 0 matches any. Unless forced, it fails while the slice has live
	// processes.
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
}

// Hook is one run of the hook.
type Hook struct {
	Enforcer Enforcer
	Policy   annotations.Policy
	Grant    annotations.Grant // from the command line
	// Records is the directory of package roots. Its parent exists while the enforcer runs.
	Records string
	// Timing, if set, receives the duration of each part of Prestart.
	Timing func(part string, took time.Duration)

	deadlines Deadlines
	wait      func() // called before each retry; nil for no retries
}

// register requests the slice. It retries while the enforcer is being replaced or is busy: such a request had no effect.
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
// A kill is harmless at any point: the runtime then creates no container, and the enforcer releases the slice when the
// container's init exits. Files in the root filesystem are recorded before they are created, and the runtime runs poststop after
// such a failure too. Mounts end with their namespace.
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
		return fmt.Errorf("%w (a pod's sandbox needs no quota only if it can reach no GPU)", refusal)
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
		if h.alreadyRegistered(ctx, s, request.Pools) {
			return nil
		}
		return fmt.Errorf("container %s has a slice that is not in pool %s alone: name all of its pools in the hooks of its config.json (%w)", s.ID, request.Pools, err)
	}
	if err != nil {
		return enforcerFailed(err)
	}
	lap("register")
	if err := h.bind(ctx, s, container, &bundle, reply); err != nil {
		// ctx may be the cause of the failure.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if _, e := h.Enforcer.Release(ctx, s.ID, reply.Slice.Generation, true); e != nil {
			err = fmt.Errorf("%w; the enforcer removes its slice (%w)", err, e)
		}
		return err
	}
	lap("bind")
	return nil
}

// alreadyRegistered reports whether another of the container's hooks registered it with the same pools. That hook has bound the slice too,
// since the runtime stops after a failed hook.
func (h *Hook) alreadyRegistered(ctx context.Context, s specs.State, pools api.PoolNames) bool {
	has, err := h.Enforcer.Slice(ctx, s.ID)
	return err == nil && has.PID == s.Pid && slices.Equal(slices.Sorted(slices.Values(has.Pools)), slices.Sorted(slices.Values(pools)))
}

// bind creates the mount points, binds the slice, and records what it created.
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
	record.AddUser(roots.User{Slice: s.ID, Generation: reply.Slice.Generation, Dir: reply.Dir})
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
		record.RemoveUser(s.ID)
		return errors.Join(err, tidy(record, b.Rootfs))
	}
	return nil
}

// Poststop releases the slice and removes the hook's files from the root filesystem, and from a few roots that had no poststop.
// It continues after errors; they are returned for the log.
func (h *Hook) Poststop(ctx context.Context, s specs.State) error {
	return errors.Join(h.poststop(ctx, s), h.sweep())
}

func (h *Hook) poststop(ctx context.Context, s specs.State) error {
	bundle, err := ReadBundle(s.Bundle)
	if err != nil {
		// The record cannot be found, but the slice can be released.
		return errors.Join(err, h.release(ctx, roots.User{Slice: s.ID}))
	}
	bundle.Own = h.Grant
	if request, err := bundle.Request(h.Policy); request == nil && err == nil {
		return nil
	}
	release := func(generation uint64) error {
		if generation == 0 && bundle.IsSandbox() {
			return nil // it has no slice, and most sandboxes need no request to the enforcer
		}
		return h.release(ctx, roots.User{Slice: s.ID, Generation: generation})
	}
	var root unix.Stat_t
	if err := unix.Stat(bundle.Rootfs, &root); err != nil {
		// The engine has unmounted it, with the files of the hook.
		return release(0)
	}
	record, err := roots.Find(ctx, h.Records, mount.FileID{Dev: root.Dev, Inode: root.Ino})
	if errors.Is(err, os.ErrNotExist) {
		return release(0) // prestart did not run, or wrote no record
	}
	if err != nil {
		return errors.Join(err, release(0))
	}
	user := record.RemoveUser(s.ID)
	return errors.Join(release(user.Generation), tidy(record, bundle.Rootfs), record.Close())
}

// release releases the slice of a stopped container. A recorded generation is released by force: processes left behind have no
// quota. Without one, prestart has not run and the id may be another container's, so live processes keep the slice.
func (h *Hook) release(ctx context.Context, u roots.User) error {
	_, err := h.Enforcer.Release(ctx, u.Slice, u.Generation, u.Generation != 0)
	if err == nil || errors.Is(err, api.ErrNotFound) || u.Generation == 0 && errors.Is(err, api.ErrRunning) {
		return nil
	}
	return fmt.Errorf("release slice %s: %w", u.Slice, err)
}

// tidy removes the files created in a root filesystem unless another slice uses it.
func tidy(record *roots.Record, rootfs string) (err error) {
	if len(record.Users) == 0 {
		record.Made, err = mount.Remove(rootfs, record.Made)
	}
	return errors.Join(err, record.Save())
}

// sweepAtMost is the number of other roots' records that a poststop checks.
const sweepAtMost = 16

// sweep removes the files of containers without a poststop: their runtime was killed.
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

// enforcerFailed adds advice to an error of the enforcer.
func enforcerFailed(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the enforcer did not answer in time: why is in " + advice.Log("gpusliced"))
	case errors.Is(err, os.ErrPermission) && rootless():
		return fmt.Errorf("a container of a rootless engine gets no quota, because its hook runs with its user's rights: start it by an engine that root runs, "+
			"or run the program by `gpuslice run` (%w)", err)
	}
	return err
}

// rootless reports whether the hook runs in a user namespace, as under a rootless engine.
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
