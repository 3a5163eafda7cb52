// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/table"
)

// step is the unit of recommended quotas, in bytes.
const step = 64 << 20

const holdersNamed = 4

// QuotaFor returns the smallest recommended quota for bytes, in the form of --vram.
func QuotaFor(bytes uint64) string {
	mib := (bytes + step - 1) / step * (step >> 20)
	if mib%1024 == 0 {
		return strconv.FormatUint(mib/1024, 10) + "G"
	}
	return strconv.FormatUint(mib, 10) + "M"
}

// Explain prints a few sentences, one per line, about a slice's last rejected request. now is the slice, if it has not ended.
func Explain(out io.Writer, run api.Run, now api.Slice, of Indices) error {
	var b strings.Builder
	waits := State(&now) == Waiting
	if waits {
		fmt.Fprintf(&b, "slice %s waits for its memory since %s: %s.\n", shortID(run.Slice), since(*now.Elastic.Waits),
			cmp.Or(Plain(now.Elastic.Obstacle), "its turn comes next"))
	}
	r := run.Refusal
	if r == nil {
		unrefused(&b, run, waits, of)
		_, err := io.WriteString(out, b.String())
		return err
	}
	fmt.Fprintf(&b, "slice %s was refused %s on %s at %s", shortID(run.Slice), request(r), of.Name(r.Device), r.Time.Local().Format(time.DateTime))
	if r.PID != 0 {
		fmt.Fprintf(&b, ", by %s", process(r.PID, r.Command))
	}
	b.WriteString(".\n")
	limits(&b, r)
	holding(&b, r)
	remedy(&b, run, r)
	_, err := io.WriteString(out, b.String())
	return err
}

func request(r *api.Refusal) string {
	if r.Requested == 0 {
		return "memory"
	}
	return fmt.Sprintf("%s of %s", r.Call, api.FormatSize(r.Requested))
}

func process(pid int, command string) string {
	if command == "" {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, Plain(command))
}

func limits(b *strings.Builder, r *api.Refusal) {
	switch {
	case r.Frozen != "":
		fmt.Fprintf(b, "All memory was refused at that time: %s.\n", Plain(r.Frozen))
		return
	case r.Limit == nil:
		b.WriteString("The process did not report which quota was full, its own or its pool's.\n")
		return
	case r.Pool != "":
		fmt.Fprintf(b, "The quota of pool %s there was %s", r.Pool, api.FormatSize(*r.Limit))
	default:
		fmt.Fprintf(b, "Its quota there was %s", api.FormatSize(*r.Limit))
	}
	if r.Requested == 0 {
		b.WriteString("; the process did not report the size of the request.\n")
		return
	}
	fmt.Fprintf(b, ", of which %s was in use: %s requested by programs, and %s of overhead (contexts, code).\n",
		api.FormatSize(r.Used+r.Overhead), api.FormatSize(r.Used), api.FormatSize(r.Overhead))
}

func holding(b *strings.Builder, r *api.Refusal) {
	if len(r.Holders) == 0 {
		return
	}
	more, bytes := r.MoreCount, r.MoreBytes
	var parts []string
	for i, h := range r.Holders {
		if i >= holdersNamed {
			more++
			bytes += h.Used + h.Overhead
			continue
		}
		part := fmt.Sprintf("%s %s", process(h.PID, h.Command), api.FormatSize(h.Used+h.Overhead))
		if h.Slice != "" {
			part += " in slice " + shortID(h.Slice)
		}
		parts = append(parts, part)
	}
	if more > 0 {
		parts = append(parts, Count(uint64(more), "other")+" "+api.FormatSize(bytes))
	}
	fmt.Fprintf(b, "Right after it, memory was held by %s.\n", strings.Join(parts, ", "))
	if strings.HasPrefix(r.Holders[0].Command, "python") || strings.HasPrefix(r.Holders[0].Command, "pt_") {
		b.WriteString("This includes what PyTorch's allocator keeps for later: torch.cuda.memory_summary() shows how much.\n")
	}
}

func remedy(b *strings.Builder, run api.Run, r *api.Refusal) {
	switch {
	case r.Frozen != "":
		fmt.Fprintf(b, "`gpuslice events %s` names the process that holds memory past the ledger; end it.\n", shortID(run.Slice))
	case r.Needed == 0:
		fmt.Fprintf(b, "`gpuslice events --follow %s` shows the next refusals as they happen.\n", shortID(run.Slice))
	case r.Pool != "":
		fmt.Fprintf(b, "The request would have fit into %s: `gpuslice pool set %s --vram %s` changes the pool at once; or end what holds memory in it.\n",
			QuotaFor(r.Needed), r.Pool, QuotaFor(r.Needed))
	case run.Ended != nil:
		fmt.Fprintf(b, "The request would have fit into %s: start it with gpuslice.vram=%s, or `gpuslice run --vram %s`.\n", QuotaFor(r.Needed), QuotaFor(r.Needed), QuotaFor(r.Needed))
	default:
		fmt.Fprintf(b, "The request would have fit into %s: `gpuslice set %s --vram %s` changes the quota at once; or end what holds memory in the slice.\n",
			QuotaFor(r.Needed), shortID(run.Slice), QuotaFor(r.Needed))
	}
}

func unrefused(b *strings.Builder, run api.Run, waits bool, of Indices) {
	fmt.Fprintf(b, "slice %s was refused no memory.\n", shortID(run.Slice))
	for _, d := range run.Devices {
		fmt.Fprintf(b, "On %s it held at most %s", of.Name(d.Device), api.FormatSize(d.Peak))
		if d.Limit > 0 {
			fmt.Fprintf(b, ", of a quota of %s", api.FormatSize(d.Limit))
		}
		b.WriteString(".\n")
	}
	if waits {
		b.WriteString("Its processes' CUDA calls continue when it is back.\n")
		return
	}
	b.WriteString("If a program still ran out of memory, the device itself was full: `gpuslice devices` shows its use.\n")
}

// Need is the memory need of a slice, image, tenant or pool on a device, from all known runs. Sizes in bytes.
type Need struct {
	Of       string    `json:"of"` // name of the slice, image, tenant or pool
	Device   string    `json:"device"`
	Index    int       `json:"index"` // of the device, or -1
	Runs     int       `json:"runs"`
	Running  int       `json:"running"` // part of Runs
	Last     time.Time `json:"last"`    // start of the last run
	Limit    uint64    `json:"limit"`   // in the last run
	Peak     uint64    `json:"peak"`
	Refusals uint64    `json:"refusals"`
	// Quota would have been sufficient for each run: the highest of the peaks and of the quotas that rejected requests needed; of a lease without
	// its overhead.
	Quota uint64 `json:"quota"`
}

// Needs sums up runs by device and by the value of of; "" is left out. overheads has those of leases, by id. The result is sorted by last run, the
// latest first.
func Needs(runs []api.Run, of func(api.Run, api.RunUse) string, overheads map[string]uint64, indices Indices) []Need {
	type key struct{ of, device string }
	needs := make(map[key]*Need)
	for _, r := range runs {
		for _, d := range r.Devices {
			name := of(r, d)
			if name == "" || d.Peak == 0 && d.Refusals == 0 {
				continue
			}
			n := needs[key{name, d.Device}]
			if n == nil {
				n = &Need{Of: name, Device: d.Device, Index: indices.of(d.Device)}
				needs[key{name, d.Device}] = n
			}
			n.Runs++
			if r.Ended == nil {
				n.Running++
			}
			if !r.Began.Before(n.Last) {
				n.Last, n.Limit = r.Began, d.Limit
			}
			quota := max(d.Peak, d.Needed)
			quota -= min(max(quota, 1)-1, overheads[r.Slice]) // one byte is the smallest lease
			n.Peak, n.Refusals, n.Quota = max(n.Peak, d.Peak), n.Refusals+d.Refusals, max(n.Quota, quota)
		}
	}
	sorted := []Need{}
	for _, n := range needs {
		sorted = append(sorted, *n)
	}
	slices.SortFunc(sorted, func(a, b Need) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Of, b.Of), cmp.Compare(a.Device, b.Device))
	})
	return sorted
}

// NeedTable lists needs.
var NeedTable = table.Table[Need]{
	ID:     func(n Need) string { return n.Of },
	Key:    func(n Need) string { return n.Of + "\x00" + n.Device },
	Object: func(n Need) any { return n },
	Columns: []table.Column[Need]{
		shortened("OF", "Of", func(n Need) string { return n.Of }),
		{Head: "DEVICE", Field: "Device", Text: func(n Need) string { return n.Device }, Short: func(n Need) string { return Numbered(n.Device, n.Index, false) }},
		{Head: "RUNS", Field: "Runs", Number: func(n Need) uint64 { return uint64(max(n.Runs, 0)) }, Text: func(n Need) string { return strconv.Itoa(n.Runs) }},
		{Head: "LAST", Field: "Last", Number: func(n Need) uint64 { return uint64(max(n.Last.UnixNano(), 0)) }, Text: func(n Need) string {
			if n.Running > 0 {
				return "running"
			}
			return n.Last.Local().Format("2006-01-02 15:04")
		}},
		{Head: "QUOTA", Field: "Quota", Number: func(n Need) uint64 { return n.Limit }, Text: func(n Need) string {
			if n.Limit == 0 {
				return "none"
			}
			return api.FormatSize(n.Limit)
		}},
		{Head: "PEAK", Field: "Peak", Number: func(n Need) uint64 { return n.Peak }, Text: func(n Need) string { return api.FormatSize(n.Peak) }},
		{Head: "REFUSED", Field: "Refused", Number: func(n Need) uint64 { return n.Refusals }, Text: func(n Need) string { return decimal(n.Refusals) },
			Alarm: func(n Need) bool { return n.Refusals > 0 }},
		{Head: "SUGGESTED", Field: "Suggested", Number: func(n Need) uint64 { return n.Quota }, Text: func(n Need) string { return QuotaFor(n.Quota) }},
	},
	Filters: []table.Filter[Need]{
		{Key: "of", Matches: func(n Need, value string) bool { return value != "" && begins(value, n.Of) }},
		{Key: "device", Matches: func(n Need, value string) bool { return value != "" && deviceIs(value, n.Device, n.Index) }},
		table.If("running", func(n Need) bool { return n.Running > 0 }),
		table.If("refused", func(n Need) bool { return n.Refusals > 0 }),
	},
}

// Recommend prints a row for each need. It shortens ids unless whole is set.
func Recommend(out io.Writer, needs []Need, whole bool) error {
	return NeedTable.Print(out, needs, whole)
}
