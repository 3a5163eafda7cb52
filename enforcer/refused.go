// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// refused makes the sentence of a refusal at the door: whoever reads it sees what was asked of which device, what is
// left of it, and who has the rest.
type refused struct {
	device, uuid string
	who          string
	bytes, left  uint64
}

// called is a device as people know it: by its index as nvidia-smi counts, and its UUID. g may be nil.
func (g *gpu) called(uuid string) string {
	if g == nil || g.Index < 0 {
		return uuid
	}
	return strconv.Itoa(g.Index) + " (" + uuid + ")"
}

func (r *refused) error(limit, current uint64, format string, args ...any) error {
	e := api.Errorf(api.CodeQuotaExceeded, "%s asks for %s on device %s, "+format, append([]any{r.who, r.size(r.bytes), r.device}, args...)...)
	e.Device, e.Requested, e.Limit, e.Current = r.uuid, r.bytes, limit, current
	return e
}

// bySize refuses what is more than one slice may have.
func (r *refused) bySize(most uint64) error {
	r.left = most
	return r.error(most, 0, "and a slice may have %s of it at most (max_vram): ask for less", r.size(most))
}

// byTenant refuses what is more than a tenant may have, whose other slices have used of it.
func (r *refused) byTenant(name string, most, used uint64, rest string) error {
	r.left = most - min(most, used)
	whose := "tenant " + name
	if name == "" {
		whose = "whoever names no tenant"
	}
	return r.error(most, used, "where %s has %s left of %s%s", whose, r.size(r.left), r.size(most), rest)
}

// byDevice refuses what is more than is left of the device, of which others have used.
func (r *refused) byDevice(capacity, used uint64, rest string) error {
	r.left = capacity - min(capacity, used)
	return r.error(capacity, used, "where %s are left of the %s that may be given%s", r.size(r.left), r.size(capacity), rest)
}

// size is short, unless the sentence would then say that what is asked for is there.
func (r *refused) size(bytes uint64) string {
	if api.FormatSize(r.bytes) == api.FormatSize(r.left) {
		return strconv.FormatUint(bytes, 10) + "B"
	}
	return api.FormatSize(bytes)
}

const (
	// named is how many holders a refusal names.
	named = 3
	// everyTenant is no tenant's name.
	everyTenant = "*"
)

// rest ends the sentence: it names who has what a holder cannot get, the largest first; those of one tenant, or of all.
func (g *given) rest(of holder, tenant string) string {
	type has struct {
		who   string
		bytes uint64
	}
	var all []has
	for h, bytes := range g.holders {
		if name, bounded := h.tenant(); h != of && (tenant == everyTenant || bounded && name == tenant) {
			all = append(all, has{h.called(), bytes})
		}
	}
	if len(all) == 0 {
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
	return " (" + strings.Join(said, ", ") + "): ask for less, or end one of them"
}
