// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// refusal makes the sentence: what was asked for on which device, what is left of it, and who has the rest.
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

// bySize refuses what is more than one slice may have.
func (r *refusal) bySize(bound uint64) error {
	r.left = bound
	return r.error(bound, 0, "and a slice may have %s of it at most (max_vram): ask for less", r.size(bound))
}

// byTenant refuses what is more than a tenant may have, whose other slices have used of it.
func (r *refusal) byTenant(name string, bound, used uint64, others string) error {
	r.left = bound - min(bound, used)
	whose := "tenant " + name
	if name == "" {
		whose = "whoever names no tenant"
	}
	return r.error(bound, used, "where %s has %s left of %s%s", whose, r.size(r.left), r.size(bound), others)
}

// byDevice refuses what is more than is left of the device, of which others have used.
func (r *refusal) byDevice(capacity, used uint64, others string) error {
	r.left = capacity - min(capacity, used)
	return r.error(capacity, used, "where %s are left of the %s that may be given%s", r.size(r.left), r.size(capacity), others)
}

// byPromises refuses what is more than is left of what elastic holders may be promised of the device.
func (r *refusal) byPromises(capacity, promised uint64) error {
	r.left = capacity - min(capacity, promised)
	return r.error(capacity, promised, "where elastic slices may be promised %s together (overcommit in [elastic]) and were promised %s: ask for less, or end one of them",
		r.size(capacity), r.size(promised))
}

// byUser refuses what is more than a user may have, whose other sessions have used of it; nil if it is not.
func (r *refusal) byUser(uid uint32, bound, used uint64) error {
	if used <= bound && r.bytes <= bound-used {
		return nil
	}
	r.left = bound - min(bound, used)
	return r.error(bound, used, "where uid %d's sessions may have %s together (max_vram) and have %s: ask for less, or end one of them",
		uid, r.size(bound), r.size(used))
}

// size is short, unless the sentence would then say that what is asked for is there.
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

// others ends the sentence: those that count and have what a holder cannot get, the largest first. Whom it may not know is not named.
func (g *granted) others(of *Holder, counts func(*Holder) bool) string {
	type has struct {
		who   string
		bytes uint64
	}
	var all []has
	var unnamed uint64
	for h, bytes := range g.holders {
		switch {
		case h == of || !counts(h):
		case of.MayKnow(h):
			all = append(all, has{h.Name, bytes})
		default:
			unnamed += bytes
		}
	}
	if len(all) == 0 && unnamed == 0 {
		return ": ask for less"
	}
	slices.SortFunc(all, func(a, b has) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.who, b.who)) })
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
