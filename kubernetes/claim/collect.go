// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/kubernetes/cdi"
)

// Claims returns a claim by its name.
type Claims func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)

// Collect removes the files and pools of claims that no longer exist or have no pod: the driver was killed between two steps, the
// kubelet was down when a pod was force-deleted, or the enforcer was unreachable during Unprepare. It keeps pools in use.
func (p *Preparer) Collect(ctx context.Context, find Claims) error {
	files, err := p.Writer.List()
	if err != nil {
		return err
	}
	var all []error
	has := make(map[types.UID]bool)
	for _, c := range files {
		used, err := inUse(ctx, find, c)
		if err != nil {
			all = append(all, err)
		}
		has[c.UID] = used || err != nil
		if !has[c.UID] {
			all = append(all, p.collect(ctx, c.UID, func() (bool, error) {
				used, err := inUse(ctx, find, c)
				return used, err
			}))
		}
	}
	pools, err := p.Enforcer.Pools(ctx)
	if err != nil {
		return errors.Join(append(all, err)...)
	}
	for _, pool := range pools {
		uid := ClaimOf(pool.Name)
		if uid == "" || has[uid] {
			continue
		}
		has[uid] = true
		// Without a file no Prepare has succeeded since the last boot.
		all = append(all, p.collect(ctx, uid, func() (bool, error) { return p.written(uid) }))
	}
	return errors.Join(all...)
}

// collect removes a claim's file and pools unless a Prepare has run in between.
func (p *Preparer) collect(ctx context.Context, uid types.UID, used func() (bool, error)) error {
	give, err := p.turns.take(ctx, uid)
	if err != nil {
		return err
	}
	defer give()
	if used, err := used(); used || err != nil {
		return err
	}
	if err := p.drop(ctx, uid); errors.Is(err, api.ErrRunning) {
		p.Log.Warn("the claim is deleted, but containers still use its pool: the pool is kept until they end", "claim", uid, "err", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("collect claim %s: %w", uid, err)
	}
	p.Log.Info("claim collected", "claim", uid)
	return p.Writer.Remove(uid)
}

func (p *Preparer) written(uid types.UID) (bool, error) {
	files, err := p.Writer.List()
	for _, c := range files {
		if c.UID == uid {
			return true, err
		}
	}
	return false, err
}

// inUse reports whether a claim exists, is allocated, and is reserved for a pod.
func inUse(ctx context.Context, find Claims, c cdi.Claim) (bool, error) {
	if c.Name == "" {
		return false, nil
	}
	found, err := find(ctx, c.Namespace, c.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find claim %s: %w", c, err)
	}
	return found.UID == c.UID && found.Status.Allocation != nil && len(found.Status.ReservedFor) > 0, nil
}
