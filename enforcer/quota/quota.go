// SPDX-License-Identifier: Apache-2.0

// Package quota keeps the state of one quota: a ledger, its devices, and the lanes of processes. Each slice and each pool has a Quota.
//
// Every process with the ledger can write to it. So Verify compares the page's limits with the Quota's own copy, and a lane's figures count
// only while the driver does not contradict them (package truth).
package quota

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// Left is the state of a quota after Leave: its processes continue without this enforcer.
const Left api.State = "left"

// Owner is the slice or the pool of a quota. Its methods are called with the lock held.
type Owner interface {
	// Damaged reports that the page cannot be trusted (Reason), and that no more bytes are granted. Overwritten is set if a process
	// overwrote the page. It is not set during a restart, since a page of another version may differ from what this one expects.
	Damaged()
	// Ending is called before a lane is settled. Its process has exited, or called execve.
	Ending(l *Lane)
	// ContextBytes returns the bytes that a process charges before its first context on a device.
	ContextBytes(d *Device) uint64
}

// Options configure a Quota. All but the last two are required.
type Options struct {
	Log    *slog.Logger
	Owner  Owner
	Lock   sync.Locker      // the owner's lock, which guards the Quota
	Deaths *process.Watcher // watches the processes with lanes
	Pool   string           // the pool's name, for messages about refusals; "" for a slice
	Record bool             // refuse nothing
}

// Quota is one ledger with its devices and lanes. The owner's lock guards all of it. A caller of a method holds the lock, or the Quota is
// not shared yet, unless the method says otherwise. Identity does not change after Begin.
type Quota struct {
	Options

	State  api.State // Active, Expired, Damaged, Released, or Left
	Reason string
	Frozen string // why nothing more is granted for now, or ""

	Overwritten bool // damaged since a process overwrote the page

	Ledger   *ledger.Ledger // nil before Begin, after Leave, and if a restart has lost it
	Identity ledger.Identity
	Stored   bool      // the store has the ledger
	Devices  []*Device // in the ledger's order

	Next uint32 // first lane that was never assigned; exported for tests

	adopting bool
	free     []uint32 // settled lanes
	live     ledger.Live
	lanes    map[uint32]*Lane
	away     map[uint32]map[string]uint64 // bytes left by device and lane, of processes suspended with their whole slice
	byPID    map[int]*Lane
}

// New returns a quota without a ledger and devices.
func New(o Options) *Quota {
	return &Quota{Options: o, State: api.Active, Next: 1, lanes: make(map[uint32]*Lane), byPID: make(map[int]*Lane), away: make(map[uint32]map[string]uint64)}
}

// Begin creates a ledger with the quota's devices, which the store does not have yet. It takes the lock.
func (q *Quota) Begin() error {
	var name [16]byte
	if _, err := rand.Read(name[:]); err != nil {
		return err
	}
	l, err := ledger.Create(name)
	if err != nil {
		return err
	}
	if q.Pool != "" {
		l.SetPool(q.Pool)
	}
	if q.Record {
		l.SetRecord()
	}
	q.Lock.Lock()
	defer q.Lock.Unlock()
	q.Ledger, q.Identity, q.Stored = l, l.Identity(), false
	if q.Overwritten {
		l.SetClosed()
	}
	for i := range q.Devices {
		if err := q.Write(i); err != nil {
			return err
		}
	}
	return nil
}

// Close makes the ledger refuse all further charges. Live attached processes keep the page.
func (q *Quota) Close() {
	q.Ledger.SetClosed()
	for i, d := range q.Devices {
		if d.account == nil { // not adopted
			d.account, _ = q.Ledger.OpenAccount(i, 0)
		}
		if d.account != nil {
			_ = d.account.Limit(0) // repeats SetClosed in the limit
		}
	}
}

// Expire closes the quota permanently. Held bytes count until they are released.
func (q *Quota) Expire() {
	for _, d := range q.Devices {
		// The bytes of checkpointed processes were granted to others, which get nothing more.
		d.Limit = d.Granted()
		clear(d.suspended)
	}
	q.Close()
	q.State, q.Reason = api.Expired, "it has expired"
}

// Leave closes the quota's files in this process. The ledger and its processes continue.
func (q *Quota) Leave() error {
	var errs []error
	for number, l := range q.lanes {
		q.Deaths.Unwatch(l.Process)
		errs = append(errs, l.Process.Close())
		delete(q.lanes, number)
	}
	clear(q.byPID)
	clear(q.away)
	if q.Ledger != nil {
		errs = append(errs, q.Ledger.Close())
		q.Ledger = nil
	}
	return errors.Join(errs...)
}

// Damage marks the page as untrusted. No more bytes may be charged; processes and host continue.
func (q *Quota) Damage(err error) {
	if q.State != api.Active {
		return
	}
	q.State, q.Reason = api.Damaged, err.Error()
	if q.Ledger != nil {
		q.Ledger.SetClosed()
	}
	q.Overwritten = !q.adopting && (errors.Is(err, ledger.ErrDamaged) || errors.Is(err, ledger.ErrBusy))
	q.Owner.Damaged()
}

// WasOverwritten restores a quota with a page that was overwritten under an earlier enforcer, with its reason. It stays damaged with any
// ledger. Call it before Begin or Adopt.
func (q *Quota) WasOverwritten(reason string) {
	q.State, q.Reason, q.Overwritten = api.Damaged, reason, true
}

// Verify compares the page with the Quota's own copy. Its error wraps ledger.ErrDamaged or ledger.ErrBusy.
func (q *Quota) Verify() error {
	headers := make([]ledger.Device, len(q.Devices))
	for i, d := range q.Devices {
		headers[i] = d.onPage()
	}
	if err := q.Ledger.Check(q.Record, false, headers); err != nil {
		return err
	}
	for i, d := range q.Devices {
		// One compare-and-swap changes both, so they are equal if nothing changed during the reads.
		f := q.figures(i)
		d.Seen = f
		if f.Quiet && f.Used != f.Held {
			return fmt.Errorf("%w: device %s has %d bytes charged, and its lanes hold %d", ledger.ErrDamaged, d.Name, f.Used, f.Held)
		}
	}
	return nil
}

func (q *Quota) figures(index int) ledger.Figures {
	return q.Ledger.Figures(index, &q.live, q.Next-1)
}

// Shown returns a device's figures for people, without the charges of checkpointed processes and of those that are away, and the overhead
// in the used bytes. The figures are not of one instant, and processes can forge them; none is below zero.
func (q *Quota) Shown(index int) (f ledger.Figures, overhead uint64) {
	d := q.Devices[index]
	f = q.figures(index)
	f.Used -= min(f.Used, d.lent()+q.Away(index))
	for number := range d.suspended {
		f.Context -= min(f.Context, q.Ledger.Context(index, number))
	}
	for number, left := range q.away {
		context := q.Ledger.Context(index, number)
		f.Context -= min(f.Context, context-min(context, left[d.Name]))
	}
	return f, min(f.Used, f.Context+f.Enforcer)
}

// Used returns the bytes charged on a device, by the page's claim, without those of checkpointed processes and of those that are away; 0
// without a ledger.
func (q *Quota) Used(index int) uint64 {
	if q.Ledger == nil || index >= q.Ledger.DeviceCount() {
		return 0
	}
	used := q.figures(index).Used
	return used - min(used, q.Devices[index].lent()+q.Away(index))
}

// OverLimit reports whether more is charged on a device than its limit.
func (q *Quota) OverLimit(index int) bool {
	return q.figures(index).Used > q.Devices[index].Limit
}

// Limits returns the limit on each device, in bytes by UUID, without those of 0.
func (q *Quota) Limits() map[string]uint64 {
	limits := make(map[string]uint64)
	for _, d := range q.Devices {
		if bytes := d.Granted(); bytes > 0 {
			limits[d.Name] = bytes
		}
	}
	return limits
}

// Commitment returns the quota's commitment on each device, in bytes by UUID: the limit, or the whole device if that is less.
func (q *Quota) Commitment() map[string]uint64 { return Commitment(q.Devices) }

// Commitment returns the commitment of devices with their limits.
func Commitment(devices []*Device) map[string]uint64 {
	has := make(map[string]uint64)
	for _, d := range devices {
		if bytes := min(d.Granted(), d.Total); bytes > 0 {
			has[d.Name] = bytes
		}
	}
	return has
}

// InUse returns Used of each device, in bytes by UUID.
func (q *Quota) InUse() map[string]uint64 {
	used := make(map[string]uint64)
	for i, d := range q.Devices {
		used[d.Name] = q.Used(i)
	}
	return used
}

// Beyond returns the bytes in use on each device where they exceed a lowered limit: at most the highest limit that was ever in force, since processes
// can write to the ledger. There are none without a ledger.
func (q *Quota) Beyond() map[string]uint64 {
	beyond := make(map[string]uint64)
	for i, d := range q.Devices {
		if used := min(q.Used(i), d.HighestLimit()); used > d.Granted() {
			beyond[d.Name] = used
		}
	}
	return beyond
}

// SetExcess makes lane 0 hold the bytes that processes hold beyond their lanes on a device. It charges unverified bytes up to the limit.
func (q *Quota) SetExcess(index int, known, unverified uint64) {
	d := q.Devices[index]
	var err error
	if held := d.account.Held(); held < known || held > known+unverified {
		err = d.account.Set(max(known, min(held, known+unverified)))
	}
	if rest := known + unverified - d.account.Held(); err == nil && rest > 0 {
		if used := q.figures(index).Used; used < d.Limit {
			// Other processes may take them first. The next check tries again.
			if err = d.account.Charge(min(rest, d.Limit-used)); errors.Is(err, ledger.ErrRefused) {
				err = nil
			}
		}
	}
	if err != nil {
		q.Damage(fmt.Errorf("cannot charge the overhead on device %s: %w", d.Name, err))
	}
}

// Freeze makes the ledger refuse further charges on all devices, with a reason. Charged bytes stay, and can be released. changed reports
// whether a device was not frozen before.
func (q *Quota) Freeze(why string) (changed bool) {
	if q.State != api.Active {
		return false
	}
	q.Frozen = why
	for _, d := range q.Devices {
		if d.Frozen {
			continue
		}
		d.Frozen = true
		if err := d.setLimit(d.Limit); err != nil {
			q.Damage(fmt.Errorf("cannot freeze the limit on device %s: %w", d.Name, err))
			return false
		}
		killpoint.Pass("policy.frozen")
		changed = true
	}
	return changed
}

// Thaw restores the limits after Freeze, and reports whether it did.
func (q *Quota) Thaw() bool {
	q.Frozen = ""
	for _, d := range q.Devices {
		d.Frozen = false
		if err := d.setLimit(d.Limit); err != nil {
			q.Damage(fmt.Errorf("cannot restore the limit on device %s: %w", d.Name, err))
			return false
		}
		killpoint.Pass("policy.thawed")
	}
	return true
}

// pass passes a kill point, such as attach.live, which is attach.pool.live in a pool's quota.
func (q *Quota) pass(point string) {
	if q.Pool != "" {
		what, far, _ := strings.Cut(point, ".")
		point = what + ".pool." + far
	}
	killpoint.Pass(point)
}

// Describe returns a device with a limit in bytes. ledger.NoLimit is for a slice that is limited by its pool only; 0 is for one that can
// get nothing, since others have the whole device. It needs no lock.
func (q *Quota) Describe(uuid driver.UUID, limit, total uint64) *Device {
	d := &Device{Device: ledger.Device{UUID: uuid.Raw, Total: total}, Name: uuid.String(), suspended: make(map[uint32]uint64)}
	d.become(limit)
	if q.Record {
		// In record mode nothing is refused, and nothing else may differ for the program.
		d.Limit, d.Quota = ledger.NoLimit, total
	}
	return d
}

// Write writes a device, or its changes, to the ledger.
func (q *Quota) Write(index int) error {
	d := q.Devices[index]
	if d.account == nil {
		account, err := q.Ledger.OpenAccount(index, 0)
		if err != nil {
			return err
		}
		d.account, d.Frozen = account, q.Frozen != ""
	}
	return d.account.SetDevice(d.onPage(), q.Owner.ContextBytes(d))
}

// Add appends a device. On failure processes get no memory.
func (q *Quota) Add(d *Device) error {
	q.Devices = append(q.Devices, d)
	index := len(q.Devices) - 1
	if err := q.Write(index); err != nil {
		q.Devices = q.Devices[:index]
		q.Damage(fmt.Errorf("cannot add device %s: %w", d.Name, err))
		return ledger.StatusClosed
	}
	return nil
}

// Index returns the ledger's index of a device, or -1.
func (q *Quota) Index(uuid [16]byte) int {
	for i, d := range q.Devices {
		if d.UUID == uuid {
			return i
		}
	}
	return -1
}

func closeQuietly(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
