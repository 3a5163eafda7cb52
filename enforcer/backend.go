// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// Backend holds the processes of a cgroup to a number of bytes of a device by itself, whatever they do. cgroup is a
// directory, device a UUID. Its errors are those of package driver: ErrNoLimits, ErrNoController, ErrNoCgroup.
type Backend interface {
	// Limit replaces what was set before. What is held beyond it stays with whoever holds it.
	Limit(cgroup, device string, bytes uint64) error
	// Limited is what was set; driver.NoLimit if nothing was.
	Limited(cgroup, device string) (uint64, error)
	// Unlimit takes away what was set; that nothing was, or that the cgroup is gone, is no error.
	Unlimit(cgroup, device string) error
}

// patienceOfBackend is how long a registration waits for the backend. One that does not answer is not asked again before it has.
const patienceOfBackend = 700 * time.Millisecond

// native is on which devices the backend enforces, and why not on the others. It does not change.
type native struct {
	backend Backend // nil: there is none
	mount   string  // of the cgroups
	devices map[[16]byte]*nativeDevice
	behind  chan struct{} // slices have other limits than the driver was told
}

type nativeDevice struct {
	*gpu
	slot chan struct{} // taken while the backend is asked about this device
	why  string        // the backend does not enforce; "" if it does
}

// openNative finds out on which devices the backend enforces: where a limit that is set for a cgroup is there when it is
// asked for. It fails if the configuration wants it on all devices and it does not on one.
func (e *Enforcer) openNative() error {
	e.native = native{backend: e.options.Backend, devices: make(map[[16]byte]*nativeDevice), behind: make(chan struct{}, 1)}
	want := e.options.Enforcement
	if e.truth == nil {
		if want == api.Native {
			return fmt.Errorf("enforcement = %q needs NVML: %s", api.Native, e.options.NoTruth)
		}
		return nil
	}
	general := e.noNative()
	for _, g := range e.truth.devices {
		d := &nativeDevice{gpu: g, slot: make(chan struct{}, 1), why: general}
		e.native.devices[g.Raw] = d
		if d.why == "" {
			d.why = e.probe(d)
		}
		if want == api.Native && d.why != "" {
			return fmt.Errorf("enforcement = %q cannot be kept on device %s, since %s: %q uses it where it works", api.Native, g.called(g.UUID), d.why, api.Auto)
		}
		if general == "" {
			e.log.Info("enforcement", "device", g.UUID, "by", d.enforcement(), "why", d.reason())
		}
	}
	return nil
}

// noNative is why the backend enforces on no device; "" if it may.
func (e *Enforcer) noNative() string {
	switch {
	case e.options.Enforcement == api.Intercept:
		return "the configuration says so"
	case e.options.Unprivileged:
		return "this enforcer serves sessions, which have no cgroup of their own"
	case e.native.backend == nil:
		return "there is no NVML"
	}
	mount, alone := e.host.V2()
	if !alone {
		return "the driver's limits are for cgroups of version 2, and this host has cgroups of version 1 too"
	}
	e.native.mount = mount
	return ""
}

// probe sets a limit for a cgroup of its own, and says why it cannot be relied on; "" if it can.
func (e *Enforcer) probe(d *nativeDevice) string {
	if d.Parent != "" {
		return "it is a MIG instance, which the driver has no limits for"
	}
	// The same name at each start, so that what one which was killed has left is not left for ever.
	sum := sha256.Sum256([]byte(e.options.StateDir))
	dir := filepath.Join(e.native.mount, fmt.Sprintf("gpuslice-probe-%x", sum[:6]))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Sprintf("no cgroup can be made to try it: %v", err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil {
			e.log.Warn("remove the cgroup that the driver's limits were tried on", "cgroup", dir, "err", err)
		}
	}()
	const step = 2 << 20
	bytes := d.Total / 2 / step * step // no driver has to round it
	var got uint64
	err := e.native.ask(d, func(b Backend) error {
		err := limit(b, e.native.mount, dir, d.UUID, bytes)
		if err == nil {
			got, err = b.Limited(dir, d.UUID)
		}
		return errors.Join(err, unlimit(b, dir, d.UUID))
	})
	switch {
	case err != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		return first
	case got != bytes:
		return fmt.Sprintf("a limit of %d bytes that was set for a cgroup is %d bytes afterwards", bytes, got)
	}
	return ""
}

// ask has f done, and waits for it for so long. What f writes is its caller's only if there is no error.
func (n *native) ask(d *nativeDevice, f func(Backend) error) error {
	_, err := ask(d.slot, patienceOfBackend, func() (struct{}, error) { return struct{}{}, f(n.backend) })
	return err
}

// limit sets a limit for a cgroup. Where the driver keeps limits by the kernel's dmem controller, the cgroup needs that one, and
// has it if all that are above it hand it down. Not all runtimes see to that (runc does, crun does not).
func limit(b Backend, mount, dir, device string, bytes uint64) error {
	err := b.Limit(dir, device, bytes)
	if !errors.Is(err, driver.ErrNoController) {
		return err
	}
	if handErr := handDown(mount, dir); handErr != nil {
		return fmt.Errorf("%w: %w", err, handErr)
	}
	return b.Limit(dir, device, bytes)
}

// unlimit takes a limit away. A driver that has no limits has none to take away.
func unlimit(b Backend, dir, device string) error {
	if err := b.Unlimit(dir, device); !errors.Is(err, driver.ErrNoLimits) {
		return err
	}
	return nil
}

// handDown has each cgroup from the mount down to dir's parent give its children the dmem controller.
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

// enforcement is who enforces on the device; nil is one that only slices have named.
func (d *nativeDevice) enforcement() api.Enforcement {
	if d == nil || d.why != "" {
		return api.Intercept
	}
	return api.Native
}

// reason is a sentence without its beginning and end.
func (d *nativeDevice) reason() string {
	switch {
	case d == nil:
		return "there is no NVML"
	case d.why == "":
		return "the driver keeps a limit that is set for a cgroup"
	default:
		return d.why
	}
}
