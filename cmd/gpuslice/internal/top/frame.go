// SPDX-License-Identifier: Apache-2.0

// Package top shows slices and devices live in a terminal. It owns the screen while it runs, and must never print unescaped text
// of other users. It shows one snapshot per refresh, provided by the caller's function.
package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/show"
)

// Snapshot is the state at one time.
type Snapshot struct {
	Devices []api.Device // nil if the caller may not see them
	Slices  []api.Slice
	Details map[string]api.Slice // by id: the slices with processes requested
	Version uint64               // unchanged if nothing else has changed; 0 if unknown
}

type order int

const (
	byUsed order = iota
	byQuota
	byRefusals
	byName
	orders // number of orders
)

func (o order) String() string { return []string{"used", "quota", "refusals", "name"}[o] }

type view struct {
	width, height int
	order         order
	filter        string
	typing        bool            // the filter is being typed
	open          map[string]bool // ids of slices with processes shown
	outside       bool            // processes outside slices are listed
	selected      string          // id of a slice
	err           error           // of the last refresh
}

var (
	strong = lipgloss.NewStyle().Bold(true)
	dim    = lipgloss.NewStyle().Faint(true)
	used   = lipgloss.NewStyle().Foreground(lipgloss.Color("2"))
	over   = lipgloss.NewStyle().Foreground(lipgloss.Color("3"))
	full   = lipgloss.NewStyle().Foreground(lipgloss.Color("1"))
	chosen = lipgloss.NewStyle().Reverse(true)
)

// brush is the text that a style adds before and after a text. Rendering by the style takes ten times as long, and each line has
// two parts of a bar.
type brush struct{ before, after string }

func brushOf(s lipgloss.Style) brush {
	before, after, _ := strings.Cut(s.Render("x"), "x")
	return brush{before, after}
}

func (b brush) paint(text string) string {
	if text == "" {
		return ""
	}
	return b.before + text + b.after
}

// brushes are those of bars, created for each frame.
type brushes struct{ used, over, full brush }

// row is a slice on one of its devices; use is nil for a slice without devices.
type row struct {
	slice *api.Slice
	use   *api.DeviceUse
}

func (r row) held() uint64 { return r.use.Used + r.use.Overhead }

func rows(s Snapshot, v view) []row {
	var all []row
	for i := range s.Slices {
		slice := &s.Slices[i]
		if !matches(slice, v.filter) {
			continue
		}
		for j := range slice.Devices {
			all = append(all, row{slice, &slice.Devices[j]})
		}
		if len(slice.Devices) == 0 {
			all = append(all, row{slice, new(api.DeviceUse)})
		}
	}
	slices.SortStableFunc(all, func(a, b row) int {
		by := 0
		switch v.order {
		case byUsed:
			by = cmp.Compare(b.held(), a.held())
		case byQuota:
			by = cmp.Compare(b.use.Limit, a.use.Limit)
		case byRefusals:
			by = cmp.Compare(b.use.Refusals, a.use.Refusals)
		}
		return cmp.Or(by, cmp.Compare(a.slice.ID, b.slice.ID), cmp.Compare(a.use.Device, b.use.Device))
	})
	return all
}

// matches reports whether any name of a slice contains text.
func matches(s *api.Slice, text string) bool {
	if text == "" {
		return true
	}
	for _, name := range []string{s.ID, s.Container, s.Tenant, s.Pools.String()} {
		if strings.Contains(name, text) {
			return true
		}
	}
	return false
}

const (
	barWidth  = 24
	nameWidth = 20
)

func frame(s Snapshot, v view) string {
	var lines []string
	bars := brushes{brushOf(used), brushOf(over), brushOf(full)}
	put := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	put("%s", title(s, v))
	for _, d := range s.Devices {
		put("%s", deviceLine(d, bars))
	}
	if v.outside {
		lines = append(lines, outsideLines(s)...)
	}
	put("")
	put("%s", strong.Render(fmt.Sprintf("  %-*s  %-12s  %-*s  %9s %9s %9s %5s %8s  %s", nameWidth, "SLICE", "DEVICE", barWidth+2, "", "USED", "OVERHEAD", "QUOTA", "PROCS", "REFUSALS", "STATE")))
	body, at := bodyLines(s, v, bars)
	var last string
	for _, line := range body[visible(len(body), at, v.height-len(lines)-1):] {
		if v.height > 0 && len(lines) >= v.height-1 {
			break
		}
		lines = append(lines, line())
	}
	switch {
	case v.err != nil:
		last = full.Render("gpusliced does not answer; this is its last answer: " + show.Plain(v.err.Error()))
	case v.typing:
		last = "/" + show.Plain(v.filter) + "_"
	default:
		last = dim.Render("q quit  up/down select  enter processes  a all  o outside  s sort  / filter")
	}
	for v.height > 0 && len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, last)
	for i, l := range lines {
		if v.width > 0 && len(l) > v.width {
			lines[i] = ansi.Truncate(l, v.width, "")
		}
	}
	return strings.Join(lines, "\n")
}

// visible returns the first of the lines to show, so that line at is among the room lines shown.
func visible(lines, at, room int) int {
	if room <= 0 || at < room || lines <= room {
		return 0
	}
	return min(at-room+1, lines-room)
}

func title(s Snapshot, v view) string {
	text := fmt.Sprintf("gpuslice  %d slices  sorted by %s", len(s.Slices), v.order)
	if v.filter != "" {
		text += "  filter " + show.Plain(v.filter)
	}
	return strong.Render(text)
}

func deviceLine(d api.Device, bars brushes) string {
	name := show.Device(d.UUID)
	if d.Index >= 0 {
		name = strconv.Itoa(d.Index) + ":" + name
	}
	free := ""
	if d.Free != nil {
		free = "  free to give " + api.FormatSize(*d.Free)
	}
	given := "  given " + api.FormatSize(d.Quotas) + free
	if d.Used == nil {
		return fmt.Sprintf("%-14s %s  %s unknown%s", name, bars.bar(0, 0, d.Total, barWidth), api.FormatSize(d.Total), given)
	}
	out := ""
	if d.OutsideCount > 0 {
		out = fmt.Sprintf("  outside slices %s in %d", api.FormatSize(d.OutsideUsed), d.OutsideCount)
	}
	inside := *d.Used - min(*d.Used, d.OutsideUsed)
	return fmt.Sprintf("%-14s %s  %s of %s%s%s", name, bars.bar(inside, *d.Used-inside, d.Total, barWidth), api.FormatSize(*d.Used), api.FormatSize(d.Total), given, out)
}

// bar shows first, followed by second, in proportion to total.
func (b brushes) bar(first, second, total uint64, width int) string {
	if total == 0 {
		return "[" + strings.Repeat(" ", width) + "]"
	}
	cells := func(bytes uint64) int { return min(width, int(float64(bytes)/float64(total)*float64(width)+0.5)) }
	one := cells(first)
	two := cells(first+second) - one
	brush := b.used
	if first+second > total-total/20 {
		brush = b.full
	}
	return "[" + brush.paint(strings.Repeat("#", one)) + b.over.paint(strings.Repeat("+", two)) + strings.Repeat(" ", width-one-two) + "]"
}

func outsideLines(s Snapshot) []string {
	var lines []string
	for _, d := range s.Devices {
		for _, p := range d.Outside {
			bytes := "unknown"
			if p.Bytes != nil {
				bytes = api.FormatSize(*p.Bytes)
			}
			lines = append(lines, fmt.Sprintf("  outside slices  %-12s %9s  process %d %s", show.Device(d.UUID), bytes, p.PID, show.Plain(p.Command)))
		}
	}
	if len(lines) == 0 {
		return []string{dim.Render("  nothing is known to be held outside slices")}
	}
	return lines
}

// bodyLines returns functions that render the lines of slices and processes if shown; at is the line of the selected slice.
func bodyLines(s Snapshot, v view, bars brushes) (lines []func() string, at int) {
	shown := rows(s, v)
	for i, r := range shown {
		selected := r.slice.ID == v.selected
		if selected && (i == 0 || shown[i-1].slice.ID != v.selected) {
			at = len(lines)
		}
		lines = append(lines, func() string {
			if selected {
				return chosen.Render("> " + ansi.Strip(sliceLine(r, bars))) // the sign is for terminals without colours
			}
			return "  " + sliceLine(r, bars)
		})
		if v.open[r.slice.ID] {
			for _, l := range processLines(s.Details[r.slice.ID], r.use.Device) {
				lines = append(lines, func() string { return l })
			}
		}
	}
	if len(shown) == 0 {
		lines = append(lines, func() string { return dim.Render("no slices") })
	}
	return lines, at
}

func sliceLine(r row, bars brushes) string {
	name := show.ShortID(r.slice.ID)
	if len(name) > nameWidth {
		name = name[:nameWidth]
	}
	quota, of := "none", r.use.Limit
	if of > 0 || r.slice.Mode != api.Record {
		quota = api.FormatSize(of)
	}
	device := "-"
	if r.use.Device != "" {
		device = show.Device(r.use.Device)
	}
	return fmt.Sprintf("%-*s  %-12s  %s  %9s %9s %9s %5d %8d  %s", nameWidth, name, device, bars.bar(r.use.Used, r.use.Overhead, max(of, r.held()), barWidth),
		api.FormatSize(r.use.Used), api.FormatSize(r.use.Overhead), quota, r.slice.ProcessCount, r.use.Refusals, r.slice.State)
}

func processLines(s api.Slice, device string) []string {
	var lines []string
	for _, p := range s.Processes {
		for _, d := range p.Devices {
			if d.Device != device {
				continue
			}
			truth := "unknown"
			if d.Driver != nil {
				truth = api.FormatSize(*d.Driver)
			}
			note := ""
			if p.Bypass != "" {
				note = full.Render("past the ledger: " + p.Bypass)
			}
			who, busy := strconv.Itoa(p.PID), ""
			if p.Command != "" {
				who += " " + show.Plain(p.Command)
			}
			if d.Busy != nil {
				busy = fmt.Sprintf("  GPU %3d %%", *d.Busy)
			}
			lines = append(lines, fmt.Sprintf("    process %-*s %9s %9s  driver says %s%s %s", nameWidth+barWidth+10, who, api.FormatSize(d.Used), api.FormatSize(d.Overhead), truth, busy, note))
		}
	}
	if len(lines) == 0 {
		lines = append(lines, dim.Render("  no process holds memory there"))
	}
	return lines
}
