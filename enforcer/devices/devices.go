// SPDX-License-Identifier: Apache-2.0

// Package devices knows the GPUs of a host by what the driver reports of them: their processes, memory in use and load, and the cost of a context. It
// keeps the driver's defects from the rest: there is one query per device at a time, and each caller sets its own timeout. It must never know slices.
package devices

import (
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

const (
	// Timeout limits queries, since the driver can hang: under a reset, or if a device has fallen off the bus.
	Timeout = 5 * time.Second
	// ShortTimeout is shorter than the timeout of a process that requests something.
	ShortTimeout = 700 * time.Millisecond
)

// Source is the driver. A call can hang.
type Source interface {
	Devices() ([]driver.Device, error)
	// Processes returns the bytes that the driver holds on a device for each pid of the host; driver.Unknown where it gives no figure.
	Processes(uuid string) (map[int]uint64, error)
	// Used returns the bytes of a device's memory in use, including the driver's own.
	Used(uuid string) (uint64, error)
	// Busy returns the percentage of the time since then in which kernels of each pid ran on a device; nil if the driver does not report it.
	Busy(uuid string, since time.Time) (map[int]uint32, error)
	DriverVersion() string
}

// Devices are all devices that the driver listed at the start. The nil Devices has none.
type Devices struct {
	list    []*Device
	version string

	mu       guard.Mutex[guard.Leaf]
	contexts map[string]uint64 // the least cost of a first context seen, by model and driver version
}

// Open lists the devices. unread is called with the reason if one cannot be read. contexts has the known costs of contexts.
func Open(source Source, contexts map[string]uint64, unread func(error)) (*Devices, error) {
	type answer struct {
		devices []driver.Device
		version string
	}
	found := make(chan answer, 1)
	go func() {
		devices, err := source.Devices()
		if err != nil {
			unread(err)
		}
		found <- answer{devices, source.DriverVersion()}
	}()
	select {
	case a := <-found:
		t := &Devices{version: a.version, contexts: contexts}
		for _, d := range a.devices {
			t.list = append(t.list, newDevice(source, d))
		}
		return t, nil
	case <-time.After(2 * Timeout):
		return nil, fmt.Errorf("list the devices: %w (nvidia-smi hangs too?)", driver.ErrHangs)
	}
}

// All returns the devices in the order of the driver.
func (t *Devices) All() []*Device {
	if t == nil {
		return nil
	}
	return t.list
}

// Version returns the version of the driver at the start.
func (t *Devices) Version() string { return t.version }

// At returns the device with the UUID raw; nil if there is none.
func (t *Devices) At(raw [16]byte) *Device {
	for _, g := range t.All() {
		if g.Raw == raw {
			return g
		}
	}
	return nil
}

// Of returns the device with a UUID; nil if there is none.
func (t *Devices) Of(uuid string) *Device {
	for _, g := range t.All() {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}

// Sizes returns the devices for admission; nil for the nil Devices.
func (t *Devices) Sizes() []refusal.Device {
	if t == nil {
		return nil
	}
	sizes := []refusal.Device{}
	for _, g := range t.list {
		sizes = append(sizes, refusal.Device{UUID: g.UUID, Shown: g.Called(g.UUID), Total: g.Total})
	}
	return sizes
}

// Processes returns the driver's bytes of each process on a device. Callers share the map.
func (t *Devices) Processes(uuid string) (map[int]uint64, error) {
	if g := t.Of(uuid); g != nil {
		return g.Processes(Timeout)
	}
	return nil, fmt.Errorf("%w: %s", driver.ErrNoDevice, uuid)
}

// Free returns the bytes of a device that are not in use.
func (t *Devices) Free(uuid string) (uint64, error) {
	g := t.Of(uuid)
	if g == nil {
		return 0, fmt.Errorf("%w: %s", driver.ErrNoDevice, uuid)
	}
	used, err := g.Used(Timeout)
	return g.Total - min(g.Total, used), err
}

// Context returns the key and the known cost in bytes of a first context on a device: 0 if it is unknown. The key is the device's model and the driver's
// version; "" if the device has no name.
func (t *Devices) Context(g *Device) (key string, bytes uint64) {
	if g.Name != "" {
		key = g.Name + ", driver " + t.version
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return key, t.contexts[key]
}

// Learn notes the cost of a first context. The least with the driver's version counts: a process can make it appear higher, and the next process of
// every slice charges it.
func (t *Devices) Learn(g *Device, bytes uint64) {
	key, known := t.Context(g)
	if bytes == 0 || key == "" || known != 0 && bytes >= known {
		return
	}
	t.mu.Lock()
	known = t.contexts[key]
	less := known == 0 || bytes < known
	if less {
		t.contexts[key] = bytes
	}
	t.mu.Unlock()
	if less {
		g.mu.Lock()
		g.learned = true
		g.mu.Unlock()
	}
}
