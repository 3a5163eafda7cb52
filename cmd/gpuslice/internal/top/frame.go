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
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// Snapshot is the state at one time.
type Snapshot struct {
	Devices []api.Device
	Partial bool                      // Devices lack what is granted, which the caller may not see
	Sensors map[string]driver.Sensors // by device
	Slices  []api.Slice
	Details map[string]api.Slice // by id: the slices with processes requested
	Version uint64               // unchanged if nothing but Sensors has changed; 0 if unknown
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

// columns says which columns of slices there are, and the widths of two of them.
type columns struct {
	name                      int
	bar                       int // without its brackets; 0: there is none
	procs, overhead, refusals bool
}

const (
	maxBar, minBar = 24, 6
	maxName        = 20
	minName        = 12 // beside a bar
	deviceWidth    = len("0:GPU-1b2c3d4e")
	stateWidth     = len("suspending")
)

// fit returns the columns for a terminal of this width. Bars shrink first. Then a column goes that a bar shows as well or that another
// command lists, and names are cut last. USED, QUOTA and STATE are always there.
func fit(width int) columns {
	c := columns{name: maxName, bar: maxBar, procs: true, overhead: true, refusals: true}
	spare := func() int { return width - c.width() }
	c.bar = max(minBar, c.bar+min(0, spare()))
	for _, column := range []*bool{&c.procs, &c.overhead, &c.refusals} {
		*column = spare() >= 0
	}
	c.name = max(minName, c.name+min(0, spare()))
	if spare() < 0 {
		c.bar = 0
		c.name = max(0, min(maxName, c.name+spare()))
	} else {
		c.bar = min(maxBar, c.bar+spare())
	}
	return c
}

// width returns the width of a slice's line.
func (c columns) width() int {
	return c.beforeFigures() + len(c.figures("", "", "", "", "")) + len("  ") + stateWidth
}

// beforeFigures returns the width before the column USED.
func (c columns) beforeFigures() int {
	width := c.name + len("  ") + deviceWidth + len("  ")
	if c.bar > 0 {
		width += c.bar + len("[]  ")
	}
	return width
}

// figures returns the columns from USED to REFUSALS.
func (c columns) figures(used, overhead, quota, procs, refusals string) string {
	text := fmt.Sprintf("%9s ", used)
	if c.overhead {
		text += fmt.Sprintf("%9s ", overhead)
	}
	text += fmt.Sprintf("%9s", quota)
	if c.procs {
		text += fmt.Sprintf(" %5s", procs)
	}
	if c.refusals {
		text += fmt.Sprintf(" %8s", refusals)
	}
	return text
}

// mark is before each line of a slice: the selected one has another.
const mark = "  "

func cut(text string, width int) string { return ansi.Truncate(text, width, "…") }

func frame(s Snapshot, v view) string {
	var lines []string
	bars := brushes{brushOf(used), brushOf(over), brushOf(full)}
	put := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	put("%s", title(s, v))
	for _, d := range s.Devices {
		line, sensors := deviceLine(d, !s.Partial, show.Sensors(s.Sensors[d.UUID]), v.width, bars)
		put("%s", line)
		if sensors != "" && len(s.Devices) <= v.height/4 { // half of the screen is for slices
			put("%*s %s", deviceWidth, "", sensors)
		}
	}
	if v.outside {
		lines = append(lines, outsideLines(s)...)
	}
	put("")
	c := fit(v.width - len(mark))
	heading := fmt.Sprintf("%-*s  DEVICE", c.name, cut("SLICE", c.name))
	put("%s", strong.Render(fmt.Sprintf("%s%-*s%s  STATE", mark, c.beforeFigures(), heading, c.figures("USED", "OVERHEAD", "QUOTA", "PROCS", "REFUSALS"))))
	body, at := bodyLines(s, v, c, bars)
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
			lines[i] = cut(l, v.width)
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
	text := fmt.Sprintf("gpuslice  %s  sorted by %s", show.Count(len(s.Slices), "slice"), v.order)
	if v.filter != "" {
		text += "  filter " + show.Plain(v.filter)
	}
	return strong.Render(text)
}

// deviceLine returns a device's line, and the sensors for which it has no room.
func deviceLine(d api.Device, granted bool, sensors string, width int, bars brushes) (line, below string) {
	name := show.Numbered(d.UUID, d.Index, false)
	figures := "unknown of " + api.FormatSize(d.Total)
	var inside, outside uint64
	if d.Used != nil {
		figures = api.FormatSize(*d.Used) + " of " + api.FormatSize(d.Total)
		outside = min(*d.Used, d.OutsideUsed)
		inside = *d.Used - outside
	}
	if granted {
		figures += "  given " + api.FormatSize(d.Quotas)
	}
	if d.Free != nil {
		figures += "  free to give " + api.FormatSize(*d.Free)
	}
	if d.Used != nil && d.OutsideCount > 0 {
		figures += fmt.Sprintf("  outside slices %s in %d", api.FormatSize(d.OutsideUsed), d.OutsideCount)
	}
	spare := func(figures string) int { return width - deviceWidth - len(" []  ") - ansi.StringWidth(figures) }
	if with := figures + "  " + sensors; sensors != "" && spare(with) >= minBar {
		figures, sensors = with, ""
	}
	bar := bars.bar(inside, outside, d.Total, max(minBar, min(maxBar, spare(figures))))
	return fmt.Sprintf("%-*s %s  %s", deviceWidth, name, bar, figures), sensors
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
			lines = append(lines, fmt.Sprintf("  outside slices  %-*s %9s  process %d %s", deviceWidth, show.Numbered(d.UUID, d.Index, false), bytes, p.PID, show.Plain(p.Command)))
		}
	}
	if len(lines) == 0 {
		return []string{dim.Render("  nothing is known to be held outside slices")}
	}
	return lines
}

// bodyLines returns functions that render the lines of slices and processes if shown; at is the line of the selected slice.
func bodyLines(s Snapshot, v view, c columns, bars brushes) (lines []func() string, at int) {
	visible := rows(s, v)
	for i, r := range visible {
		selected := r.slice.ID == v.selected
		if selected && (i == 0 || visible[i-1].slice.ID != v.selected) {
			at = len(lines)
		}
		lines = append(lines, func() string {
			if selected {
				return chosen.Render("> " + ansi.Strip(sliceLine(r, c, bars))) // the sign is for terminals without colours
			}
			return mark + sliceLine(r, c, bars)
		})
		if v.open[r.slice.ID] {
			for _, l := range processLines(s.Details, r, c) {
				lines = append(lines, func() string { return l })
			}
		}
	}
	if len(visible) == 0 {
		lines = append(lines, func() string { return dim.Render("no slices") })
	}
	return lines, at
}

func sliceLine(r row, c columns, bars brushes) string {
	quota, of := "none", r.use.Limit
	if of > 0 || r.slice.Mode != api.Record {
		quota = api.FormatSize(of)
	}
	device := "-"
	if r.use.Device != "" {
		device = show.Numbered(r.use.Device, r.use.Index, false)
	}
	bar := ""
	if c.bar > 0 {
		bar = bars.bar(r.use.Used, r.use.Overhead, max(of, r.held()), c.bar) + "  "
	}
	figures := c.figures(api.FormatSize(r.use.Used), api.FormatSize(r.use.Overhead), quota, strconv.Itoa(r.slice.ProcessCount), strconv.FormatUint(r.use.Refusals, 10))
	return fmt.Sprintf("%-*s  %-*s  %s%s  %s", c.name, cut(show.ShortID(r.slice.ID), c.name), deviceWidth, device, bar, figures, show.State(r.slice))
}

// processLines returns the lines of a slice's processes on the row's device.
func processLines(details map[string]api.Slice, r row, c columns) []string {
	slice, known := details[r.slice.ID]
	if !known {
		return []string{dim.Render("    asking for its processes…")}
	}
	var lines []string
	for _, p := range slice.Processes {
		for _, d := range p.Devices {
			if d.Device == r.use.Device {
				lines = append(lines, processLine(p, d, c))
			}
		}
	}
	if len(lines) == 0 {
		lines = append(lines, dim.Render("    no process holds memory there"))
	}
	return lines
}

func processLine(p api.Process, d api.ProcessUse, c columns) string {
	who := fmt.Sprintf("    process %d", p.PID)
	if p.Command != "" {
		who += " " + show.Plain(p.Command)
	}
	width := len(mark) + c.beforeFigures() - 1
	text := fmt.Sprintf("%-*s %9s", width, cut(who, width), api.FormatSize(d.Used))
	if c.overhead {
		text += fmt.Sprintf(" %9s", api.FormatSize(d.Overhead))
	}
	truth := "unknown"
	if d.Driver != nil {
		truth = api.FormatSize(*d.Driver)
	}
	text += "  driver says " + truth
	if d.Busy != nil {
		text += fmt.Sprintf("  GPU %3d %%", *d.Busy)
	}
	if p.Bypass != "" {
		text += "  " + full.Render("past the ledger: "+p.Bypass)
	}
	return text
}
