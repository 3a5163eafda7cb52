// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// try sets a limit on a cgroup of its own. It returns the reason why the backend is not reliable; "" if it is.
func (k *Keeper) try(d *device) string {
	if d.MIG {
		return "the driver has no limits for MIG instances"
	}
	dir := filepath.Join(k.options.Mount, k.options.Trial)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Sprintf("no cgroup can be created for a trial: %v", err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil {
			k.options.Log.Warn("cannot remove the cgroup of the trial of the driver's limits", "cgroup", dir, "err", err)
		}
	}()
	const step = 2 << 20
	bytes := d.Total / 2 / step * step // needs no rounding by any driver
	got, err := driver.Ask(d.slot, timeout, func() (got uint64, err error) {
		if err = k.limit(dir, d.UUID, bytes); err == nil {
			got, err = k.options.Backend.Limited(dir, d.UUID)
		}
		return got, errors.Join(err, k.unlimit(dir, d.UUID))
	})
	switch {
	case err != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		return first
	case got != bytes:
		return fmt.Sprintf("the driver changed a limit of %d bytes to %d bytes", bytes, got)
	}
	return ""
}

// limit sets a limit on a cgroup. A driver that keeps limits by the kernel's dmem controller needs that controller in the cgroup. A cgroup
// has it if all cgroups above it enable it for their children. Not all runtimes enable it (runc does, crun does not).
func (k *Keeper) limit(dir, device string, bytes uint64) error {
	err := k.options.Backend.Limit(dir, device, bytes)
	if !errors.Is(err, driver.ErrNoController) {
		return err
	}
	if handErr := handDown(k.options.Mount, dir); handErr != nil {
		return fmt.Errorf("%w: %w", err, handErr)
	}
	return k.options.Backend.Limit(dir, device, bytes)
}

// unlimit removes a limit. It succeeds if the driver has no limits.
func (k *Keeper) unlimit(dir, device string) error {
	if err := k.options.Backend.Unlimit(dir, device); !errors.Is(err, driver.ErrNoLimits) {
		return err
	}
	return nil
}

// handDown enables the dmem controller for the children of each cgroup from the mount down to dir's parent.
func handDown(mount, dir string) error {
	var above []string
	for at := dir; at != mount && at != "/"; {
		at = filepath.Dir(at)
		above = append(above, at)
	}
	for _, at := range slices.Backward(above) {
		file := filepath.Join(at, "cgroup.subtree_control")
		has, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(string(has)), "dmem") {
			continue
		}
		if err := os.WriteFile(file, []byte("+dmem"), 0); err != nil {
			return err
		}
	}
	return nil
}
