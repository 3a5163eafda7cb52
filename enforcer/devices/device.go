// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Device is one GPU, or one instance of a GPU in MIG mode.
type Device struct {
	driver.Device

	source Source
	slot   driver.Slot // taken during a query of this device
	who    *driver.Shared[map[int]uint64]

	// Exits is sent to when a process exits for which the driver may hold memory here.
	Exits chan struct{}

	begin time.Time
	// Answer is the time from the start to the last answer with the device's processes, or to a moment when none was needed.
	Answer   atomic.Int64
	failures atomic.Uint64 // queries without an answer

	mu      guard.Mutex[guard.Leaf]
	use     Use
	tried   time.Time // of the last query outside samples
	err     error     // of that query
	busy    busy
	failing bool
	learned bool // the model's cost of a context is to be published
	storing bool // the published cost is being stored
}

// Use is a device's memory in use.
type Use struct {
	At      time.Time // of the driver's answer; zero if there was none
	Used    uint64
	Outside map[int]uint64 // by pid: bytes of processes outside slices. Read-only
}

// busy is the driver's last answer about a device's load.
type busy struct {
	at     time.Time      // of the answer; zero if there was none
	of     map[int]uint32 // percent by pid; nil if unknown. Read-only
	asking bool
}

func newDevice(source Source, d driver.Device) *Device {
	slot := driver.NewSlot()
	return &Device{
		Device: d, source: source, slot: slot, Exits: make(chan struct{}, 1), begin: time.Now(),
		who: &driver.Shared[map[int]uint64]{Slot: slot, Put: func() (map[int]uint64, error) { return source.Processes(d.UUID) }},
	}
}

// Called returns the device's name for people: its index as nvidia-smi counts, and its UUID. The device may be nil.
func (g *Device) Called(uuid string) string {
	if g == nil || g.Index < 0 {
		return uuid
	}
	return strconv.Itoa(g.Index) + " (" + uuid + ")"
}

// Processes returns the driver's bytes of each process. Callers share the map.
func (g *Device) Processes(timeout time.Duration) (map[int]uint64, error) { return g.who.Ask(timeout) }

// Used returns the bytes in use.
func (g *Device) Used(timeout time.Duration) (uint64, error) {
	return driver.Ask(g.slot, timeout, func() (uint64, error) { return g.source.Used(g.UUID) })
}

// Exited has the device sampled soon, since one of its processes has exited.
func (g *Device) Exited() {
	select {
	case g.Exits <- struct{}{}:
	default: // one is due already
	}
}

// Idle notes that no sample has to query the driver. It repeats the last query of InUse if that failed, since a device without slices has no other.
func (g *Device) Idle(interval time.Duration, known func(pid int) bool) {
	failed := func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.err
	}
	if failed() != nil {
		g.InUse(interval, known)
	}
	g.answered(failed())
}

func (g *Device) answered(err error) {
	if err != nil {
		g.failures.Add(1)
	} else {
		g.Answer.Store(int64(time.Since(g.begin)))
	}
}

// Asked notes whether the driver has listed the device's processes, and reports whether that is a change.
func (g *Device) Asked(err error) (changed bool) {
	g.answered(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.failing
	g.failing = err != nil
	return was != g.failing
}

// Answers reports whether the driver has lately listed the device's processes.
func (g *Device) Answers() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.failing
}

// Silence returns the time since the driver's last answer, and the number of queries without one.
func (g *Device) Silence() (age time.Duration, failures uint64) {
	return max(0, time.Since(g.begin)-time.Duration(g.Answer.Load())), g.failures.Load()
}

// Sampled notes the memory in use, by a sample. Without a list of the processes outside slices, the former list stays.
func (g *Device) Sampled(at time.Time, used uint64, outside map[int]uint64, listed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.use.At, g.use.Used, g.err = at, used, nil
	if listed {
		g.use.Outside = outside
	}
}

// InUse returns the memory in use as of the last sample; false if the driver has not answered lately, and does not now. Samples are due in each interval.
// The driver is queried only without a recent one, since nothing is sampled without slices. known reports whether a process is in a slice.
func (g *Device) InUse(interval time.Duration, known func(pid int) bool) (Use, bool) {
	now := time.Now()
	g.mu.Lock()
	u := g.use
	ask := now.Sub(u.At) > 2*interval && now.Sub(g.tried) > interval
	if ask {
		g.tried = now
	}
	g.mu.Unlock()
	if !ask {
		return u, now.Sub(u.At) <= 3*interval
	}
	listed, err := g.Processes(ShortTimeout)
	var used uint64
	if err == nil {
		used, err = g.Used(ShortTimeout)
	}
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.err = err
		return Use{}, false
	}
	outside := maps.Clone(listed)
	maps.DeleteFunc(outside, func(pid int, _ uint64) bool { return known(pid) })
	g.Sampled(now, used, outside, true)
	return Use{At: now, Used: used, Outside: outside}, true
}

// Busy returns how busy each process keeps the device, in percent; nil if unknown. The driver is queried only while this is read, once in an interval and
// in the background: the answer is the one before.
func (g *Device) Busy(interval time.Duration) map[int]uint32 {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.busy.asking && now.Sub(g.busy.at) >= interval {
		g.busy.asking = true
		go func() { // it has a timeout
			of, err := driver.Ask(g.slot, Timeout, func() (map[int]uint32, error) { return g.source.Busy(g.UUID, now.Add(-interval)) })
			if err != nil {
				of = nil
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.busy = busy{at: time.Now(), of: of}
		}()
	}
	if now.Sub(g.busy.at) > 3*interval {
		return nil
	}
	return g.busy.of
}

// BeginPublish returns true if a lower cost of a context was learned that the caller has to publish. It returns false until EndPublish.
func (g *Device) BeginPublish() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.learned || g.storing {
		return false
	}
	g.learned, g.storing = false, true
	return true
}

// EndPublish follows a BeginPublish that returned true.
func (g *Device) EndPublish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.storing = false
}
