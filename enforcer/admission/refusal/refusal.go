// SPDX-License-Identifier: Apache-2.0

// Package refusal has the operator's limits, and refuses requests beyond them, with an error that names the device, its free bytes, and the holders
// of the rest. The caller knows what is granted; the package keeps nothing.
package refusal

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// Ask is a holder's request for one device. Sizes in bytes.
type Ask struct {
	Holder *Holder
	UUID   string
	Device *Device // nil if driver truth does not know it
	Bytes  uint64
	Had    uint64 // granted to the holder already
	Sum    uint64 // granted to all holders
	Tenant uint64 // granted to the holders that the bound of its tenant counts
	// Holders are all holders and their bytes of the device. They are read for the sentence of a refusal only.
	Holders iter.Seq2[*Holder, uint64]
}

// refusal starts the error.
func (a *Ask) refusal() *refusal {
	r := &refusal{device: a.UUID, uuid: a.UUID, who: a.Holder.Name, bytes: a.Bytes}
	if a.Device != nil {
		r.device = a.Device.Shown
	}
	return r
}

// Check returns an *api.Error if a holder may not have the bytes that it asks for. Bytes that were granted are not refused.
func (l *Limits) Check(a Ask) error {
	if a.Bytes <= a.Had {
		return nil
	}
	h, r := a.Holder, a.refusal()
	if h.Pool == "" {
		if bound, known := BoundOn(l.MaxVRAM, a.Device); known && a.Bytes > bound {
			return r.bySize(bound)
		}
	}
	if h.Bounded() {
		if bound, known := BoundOn(l.Tenant(h.Tenant), a.Device); known && a.Bytes > bound-min(bound, a.Tenant-a.Had) {
			return r.byTenant(h.Tenant, bound, a.Tenant-a.Had, a.others(func(other *Holder) bool { return other.Bounded() && other.Tenant == h.Tenant }))
		}
	}
	if a.Device == nil {
		return nil
	}
	if capacity := l.Capacity(a.Device.Total); a.Bytes > capacity-min(capacity, a.Sum-a.Had) {
		return r.byDevice(capacity, a.Sum-a.Had, a.others(func(*Holder) bool { return true }))
	}
	return nil
}

// CheckPromise returns an error if an elastic holder may not be promised Ask.Bytes of the device, of which others were promised `promised`.
// Overcommit is in thousandths of the device.
func CheckPromise(a Ask, overcommit, promised uint64) error {
	if a.Device == nil {
		return nil
	}
	if capacity := Promisable(a.Device.Total, overcommit); a.Bytes > capacity-min(capacity, promised) {
		return a.refusal().byPromises(capacity, promised)
	}
	return nil
}

// Promisable returns how many bytes of a device of total bytes may be promised.
func Promisable(total, overcommit uint64) uint64 {
	l := Limits{Overcommit: overcommit}
	return l.Capacity(total)
}

// CheckSessions returns CodeQuotaExceeded if a user with n sessions may not start another.
func (u *User) CheckSessions(n int) error {
	if n < u.MaxSessions {
		return nil
	}
	e := api.Errorf(api.CodeQuotaExceeded, "uid %d has %d sessions, and may have %d at one time: end one of them first (an ended session counts until its processes have exited)", u.UID, n, u.MaxSessions)
	e.Limit, e.Current = uint64(u.MaxSessions), uint64(n)
	return e
}

// Check returns an error if a session's request does not fit the user's limit. used has the other sessions' bytes of the device.
func (u *User) Check(a Ask, used uint64) error {
	if a.Device == nil {
		return nil
	}
	return a.refusal().byUser(u.UID, u.MaxVRAM.Of(a.Device.Total), used)
}

// CheckUnknown is Check without driver truth. The sizes of the devices are unknown, so each session counts with the largest of its quotas.
func (u *User) CheckUnknown(h *Holder, quotas []api.Quota, others iter.Seq[[]api.Quota]) error {
	bytes, known := largest(quotas)
	if u.MaxVRAM.Percent > 0 || !known {
		return api.Errorf(api.CodeQuotaExceeded, "without NVML the size of a device is not known: give the quota, and have the operator give max_vram (%s), as sizes", u.MaxVRAM)
	}
	var used uint64
	for asks := range others {
		largestAsk, _ := largest(asks)
		used += largestAsk
	}
	r := refusal{device: "any", who: h.Name, bytes: bytes}
	return r.byUser(u.UID, u.MaxVRAM.Bytes, used)
}

// CheckSize returns an error if a slice may not ask for these quotas without driver truth, while its devices are unknown. Only two shares can be
// compared, or two sizes.
func (l *Limits) CheckSize(name string, quotas []api.Quota) error {
	bound := l.MaxVRAM
	if bound.IsZero() {
		return nil
	}
	for _, q := range quotas {
		asked := api.Share{Bytes: q.Bytes, Percent: q.Percent}
		if (asked.Percent > 0) != (bound.Percent > 0) {
			return api.Errorf(api.CodeQuotaExceeded, "%s asks for %s, and a slice may have %s of a device at most (max_vram): without NVML they cannot be compared", name, asked, bound)
		}
		if asked.Bytes > bound.Bytes || asked.Percent > bound.Percent {
			e := api.Errorf(api.CodeQuotaExceeded, "%s asks for %s, and a slice may have %s of a device at most (max_vram): ask for less", name, asked, bound)
			e.Requested, e.Limit = asked.Bytes, bound.Bytes
			return e
		}
	}
	return nil
}

// refusal is the error: the requested bytes of a device, its free bytes, and the holders of the rest.
type refusal struct {
	device, uuid string
	who          string
	bytes, left  uint64
}

func (r *refusal) error(limit, current uint64, format string, args ...any) error {
	e := api.Errorf(api.CodeQuotaExceeded, "%s asks for %s on device %s, "+format, append([]any{r.who, r.size(r.bytes), r.device}, args...)...)
	e.Device, e.Requested, e.Limit, e.Current = r.uuid, r.bytes, limit, current
	return e
}

// bySize refuses a request beyond the bound of one slice.
func (r *refusal) bySize(bound uint64) error {
	r.left = bound
	return r.error(bound, 0, "and a slice may have %s of it at most (max_vram): ask for less", r.size(bound))
}

// byTenant refuses a request beyond the rest of a tenant's bound.
func (r *refusal) byTenant(name string, bound, used uint64, others string) error {
	r.left = bound - min(bound, used)
	whose := "tenant " + name + " has"
	if name == "" {
		whose = "slices without a tenant together have"
	}
	return r.error(bound, used, "where %s %s left of %s%s", whose, r.size(r.left), r.size(bound), others)
}

// byDevice refuses a request beyond the rest of the device, of which others have used.
func (r *refusal) byDevice(capacity, used uint64, others string) error {
	r.left = capacity - min(capacity, used)
	return r.error(capacity, used, "where %s are left of the %s that may be given%s", r.size(r.left), r.size(capacity), others)
}

// byPromises refuses a request beyond the rest that may be promised to elastic holders.
func (r *refusal) byPromises(capacity, promised uint64) error {
	r.left = capacity - min(capacity, promised)
	return r.error(capacity, promised, "where elastic slices may be promised %s together (overcommit in [elastic]) and were promised %s: ask for less, or end one of them",
		r.size(capacity), r.size(promised))
}

// byUser refuses a request beyond the rest of a user's bound. It returns nil if there is room.
func (r *refusal) byUser(uid uint32, bound, used uint64) error {
	if used <= bound && r.bytes <= bound-used {
		return nil
	}
	r.left = bound - min(bound, used)
	return r.error(bound, used, "where uid %d's sessions may have %s together (max_vram) and have %s: ask for less, or end one of them",
		uid, r.size(bound), r.size(used))
}

// size formats bytes. It is exact if the short forms of the request and of the rest are the same.
func (r *refusal) size(bytes uint64) string {
	if api.FormatSize(r.bytes) == api.FormatSize(r.left) {
		return strconv.FormatUint(bytes, 10) + "B"
	}
	return api.FormatSize(bytes)
}

// named is how many holders a refusal names.
const named = 3

// MayKnow says whether a refusal to one holder may name another. A refusal to a user's session names that user's sessions only. Refusals
// neither name a private holder to others nor others to it.
func (h *Holder) MayKnow(other *Holder) bool {
	if h.Private || other.Private {
		return h == other
	}
	return h.UID == nil || *h.UID == 0 || other.UID != nil && *other.UID == *h.UID
}

// others names the other holders that count, the largest first. It sums up holders that this one may not know.
func (a *Ask) others(counts func(*Holder) bool) string {
	type has struct {
		who   string
		bytes uint64
	}
	var all []has
	var unnamed uint64
	for h, bytes := range a.Holders {
		switch {
		case h == a.Holder || bytes == 0 || !counts(h):
		case a.Holder.MayKnow(h):
			all = append(all, has{h.Name, bytes})
		default:
			unnamed += bytes
		}
	}
	if len(all) == 0 && unnamed == 0 {
		return ": ask for less"
	}
	slices.SortFunc(all, func(x, y has) int { return cmp.Or(cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.who, y.who)) })
	var said []string
	for _, h := range all[:min(named, len(all))] {
		said = append(said, h.who+" has "+api.FormatSize(h.bytes))
	}
	if more := all[len(said):]; len(more) > 0 {
		var sum uint64
		for _, h := range more {
			sum += h.bytes
		}
		said = append(said, fmt.Sprintf("and %d others %s", len(more), api.FormatSize(sum)))
	}
	if unnamed > 0 {
		said = append(said, "others "+api.FormatSize(unnamed))
	}
	if len(all) == 0 {
		return " (" + strings.Join(said, ", ") + "): ask for less"
	}
	return " (" + strings.Join(said, ", ") + "): ask for less, or end one of them"
}
