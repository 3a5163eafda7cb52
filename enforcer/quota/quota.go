// SPDX-License-Identifier: Apache-2.0

// Package quota keeps the books of one quota: a ledger, the devices in it, and the lanes that processes have there. A slice has a
// Quota, and so has a pool.
//
// Every process that has the ledger can write to it. What its page says about limits is therefore compared with the Quota's own copy
// (Verify), and a lane counts for what it says only as long as the driver does not say otherwise (package truth).
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

// Left is the state of a quota whose processes go on without this enforcer.
const Left api.State = "left"

// Owner is the slice or the pool whose quota it is. Its methods are called with the lock held.
type Owner interface {
	// Damaged is told that nothing more is granted, since the page cannot be trusted (Reason). It is Overwritten by a process that had it,
	// but at a restart: a page that another version left need not be what this one expects.
	Damaged()
	// Settled is told of a lane that is about to be free. Its process has exited, or called execve.
	Settled(l *Lane)
	// ContextBytes is what a process charges before its first context on a device.
	ContextBytes(d *Device) uint64
}

// Options say whose quota it is. All of them are needed but for the last two.
type Options struct {
	Log    *slog.Logger
	Owner  Owner
	Lock   sync.Locker      // the owner's, which guards the Quota
	Deaths *process.Watcher // of the processes that have a lane
	Pool   string           // the name of the pool, which its processes say when they are refused something; "" for a slice
	Record bool             // nothing is refused
}

// Quota is one ledger with its devices and lanes. The owner's lock guards all of it: who calls a method has it, or nobody else knows the
// Quota yet, unless the method says otherwise. Identity is the same from Begin on.
type Quota struct {
	Options

	State  api.State // Active, Expired, Damaged, Released, or Left
	Reason string
	Frozen string // why nothing more is granted for the time being; "" if it is

	Overwritten bool // it is damaged since a process has overwritten the page

	Ledger   *ledger.Ledger // nil before Begin, after Leave, and where a restart has lost it
	Identity ledger.Identity
	Stored   bool      // the store knows the ledger
	Devices  []*Device // in the ledger's order

	Next uint32 // lanes from here on were never given out; exported for tests

	adopting bool
	free     []uint32 // lanes that were given back
	live     ledger.Live
	lanes    map[uint32]*Lane
	away     map[uint32]map[string]uint64 // lanes of processes that are suspended with all others of the slice, and what they left, by device
	byPID    map[int]*Lane
}

// New returns a quota that has no ledger and no devices yet.
func New(o Options) *Quota {
	return &Quota{Options: o, State: api.Active, Next: 1, lanes: make(map[uint32]*Lane), byPID: make(map[int]*Lane), away: make(map[uint32]map[string]uint64)}
}

// Begin makes a new ledger with the devices that there are. The store does not know it yet. Begin takes the lock.
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

// Close lets nothing more be charged: who is attached and alive still has the page.
func (q *Quota) Close() {
	q.Ledger.SetClosed()
	for i, d := range q.Devices {
		if d.account == nil { // nobody has adopted it
			d.account, _ = q.Ledger.OpenAccount(i, 0)
		}
		if d.account != nil {
			_ = d.account.Limit(0) // SetClosed says the same, to whoever reads it
		}
	}
}

// Expire is Close for good: what is held counts until it is given back.
func (q *Quota) Expire() {
	for _, d := range q.Devices {
		// What a checkpointed process is charged for was granted to others, which are granted nothing any more.
		d.Limit = d.Granted()
		clear(d.suspended)
	}
	q.Close()
	q.State, q.Reason = api.Expired, "its time is over"
}

// Leave closes what this process has open for the quota. The ledger stays as it is, with the processes that have it.
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

// Damage says that the page cannot be trusted any more. Nothing more may be charged; the processes and the host go on.
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

// WasOverwritten is for a quota whose page was overwritten while a former enforcer ran, for this reason: it stays damaged, whatever
// ledger it gets. Called before Begin or Adopt.
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
		// Both are changed by the same swap, so with nothing changing meanwhile they cannot differ.
		f := q.figures(i)
		d.Seen = f
		if f.Quiet && f.Used != f.Held {
			return fmt.Errorf("%w: device %s has %d bytes charged, its lanes hold %d", ledger.ErrDamaged, d.Name, f.Used, f.Held)
		}
	}
	return nil
}

// figures are what the page says of a device.
func (q *Quota) figures(index int) ledger.Figures {
	return q.Ledger.Figures(index, &q.live, q.Next-1)
}

// Shown are a device's figures for people, without what processes are charged for that are checkpointed or away, and how much of what is used is
// overhead. The figures are not of one instant, and the page may say anything: nothing is below zero.
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

// Used is what processes that are neither checkpointed nor away are charged for on a device, by the page's word; 0 without a ledger.
func (q *Quota) Used(index int) uint64 {
	if q.Ledger == nil || index >= q.Ledger.DeviceCount() {
		return 0
	}
	used := q.figures(index).Used
	return used - min(used, q.Devices[index].lent()+q.Away(index))
}

// OverLimit says whether more is charged on a device than may be.
func (q *Quota) OverLimit(index int) bool {
	return q.figures(index).Used > q.Devices[index].Limit
}

// Commitment is what the quota comes to on each device, in bytes by UUID: the limit, or the whole device if that is less.
func (q *Quota) Commitment() map[string]uint64 { return Commitment(q.Devices) }

// Commitment is what the limits of devices come to, as of a Quota that has them.
func Commitment(devices []*Device) map[string]uint64 {
	has := make(map[string]uint64)
	for _, d := range devices {
		if bytes := min(d.Granted(), d.Total); bytes > 0 {
			has[d.Name] = bytes
		}
	}
	return has
}

// AtLeastUsed raises a commitment to what is used of each device, as far as that was committed before, and says whether that was more
// anywhere: a quota was lowered, and what is held beyond it can be promised to nobody else.
func (q *Quota) AtLeastUsed(has, had map[string]uint64) (more bool) {
	for i, d := range q.Devices {
		if bytes := min(q.Used(i), had[d.Name]); bytes > has[d.Name] {
			has[d.Name], more = bytes, true
		}
	}
	return more
}

// SetExcess has the enforcer's own lane hold what processes hold beyond theirs on a device, in bytes. What is not verified is charged as
// far as it fits.
func (q *Quota) SetExcess(index int, known, unverified uint64) {
	d := q.Devices[index]
	var err error
	if held := d.account.Held(); held < known || held > known+unverified {
		err = d.account.Set(max(known, min(held, known+unverified)))
	}
	if rest := known + unverified - d.account.Held(); err == nil && rest > 0 {
		if used := q.figures(index).Used; used < d.Limit {
			// Others may take it first: then it is tried again at the next check.
			if err = d.account.Charge(min(rest, d.Limit-used)); errors.Is(err, ledger.ErrRefused) {
				err = nil
			}
		}
	}
	if err != nil {
		q.Damage(fmt.Errorf("overhead on device %s cannot be charged: %w", d.Name, err))
	}
}

// Freeze lets nothing more be charged on any device, and says why. What is charged stays, and can be given back. changed: that was not
// so before on all of them.
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
			q.Damage(fmt.Errorf("the limit on device %s cannot be frozen: %w", d.Name, err))
			return false
		}
		killpoint.Pass("policy.frozen")
		changed = true
	}
	return changed
}

// Thaw gives back what Freeze took, and says whether it did.
func (q *Quota) Thaw() bool {
	q.Frozen = ""
	for _, d := range q.Devices {
		d.Frozen = false
		if err := d.setLimit(d.Limit); err != nil {
			q.Damage(fmt.Errorf("the limit on device %s cannot be given back: %w", d.Name, err))
			return false
		}
		killpoint.Pass("policy.thawed")
	}
	return true
}

// pass is a kill point: of what is done and how far, as in attach.live, which is attach.pool.live in a pool's quota.
func (q *Quota) pass(point string) {
	if q.Pool != "" {
		what, far, _ := strings.Cut(point, ".")
		point = what + ".pool." + far
	}
	killpoint.Pass(point)
}

// Describe makes a device on which processes may hold limit bytes: ledger.NoLimit is of a slice that draws on its pool's quota alone, 0 is
// of one that can be given nothing, as others have all of the device.
// It needs no lock.
func (q *Quota) Describe(uuid driver.UUID, limit, total uint64) *Device {
	d := &Device{Device: ledger.Device{UUID: uuid.Raw, Total: total}, Name: uuid.String(), suspended: make(map[uint32]uint64)}
	d.become(limit)
	if q.Record {
		// Nothing is refused, so nothing else must differ for the program either.
		d.Limit, d.Quota = ledger.NoLimit, total
	}
	return d
}

// Write puts a device into the ledger, or what has changed about it.
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

// Add puts a device behind the others. Its error says that processes get nothing.
func (q *Quota) Add(d *Device) error {
	q.Devices = append(q.Devices, d)
	index := len(q.Devices) - 1
	if err := q.Write(index); err != nil {
		q.Devices = q.Devices[:index]
		q.Damage(fmt.Errorf("device %s cannot be added: %w", d.Name, err))
		return ledger.StatusClosed
	}
	return nil
}

// Index is the ledger's index of a device; -1 if it has it not.
func (q *Quota) Index(uuid [16]byte) int {
	for i, d := range q.Devices {
		if d.UUID == uuid {
			return i
		}
	}
	return -1
}

// closeQuietly is for what was open already.
func closeQuietly(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
