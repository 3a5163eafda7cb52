// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"io"
	"maps"
	"slices"
	"time"
	"unicode"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/terminal"
)

func init() { terminal.Restore() }

// maxFilter is how many characters a filter has at most.
const maxFilter = 64

// Ask returns how things stand, with the processes of those slices.
type Ask func(ctx context.Context, open []string) (Snapshot, error)

// model is bubbletea's.
type model struct {
	ctx    context.Context
	ask    Ask
	every  time.Duration
	screen *screen

	snapshot Snapshot
	view     view
	all      bool // processes of all slices are shown

	drawn bool // nothing has changed since the screen was drawn
}

type (
	answer struct {
		snapshot Snapshot
		err      error
		at       time.Time // asked
		once     bool      // no other one follows it
	}
	tick struct{}
)

// Run shows what ask says in a terminal, anew each time that long after the last, until who reads it quits or ctx ends.
func Run(ctx context.Context, in io.Reader, out io.Writer, ask Ask, every time.Duration) error {
	screen, err := takeScreen(in, out)
	if err != nil {
		return err
	}
	defer screen.leave()
	m := &model{ctx: ctx, ask: ask, every: every, screen: screen, view: view{open: make(map[string]bool)}}
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutRenderer(), tea.WithoutCatchPanics())
	defer screen.tellSizes(p)()
	defer context.AfterFunc(ctx, p.Quit)() // tea.WithContext would have it end without waiting for who reads keys
	_, err = p.Run()
	if ctx.Err() != nil {
		return nil // whatever failed with it: the terminal may be gone
	}
	return err
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.refresh(false) }

// refresh asks aside.
func (m *model) refresh(once bool) tea.Cmd {
	open := slices.Sorted(maps.Keys(m.view.open))
	return func() tea.Msg {
		defer m.screen.leaveAtPanic()
		at := time.Now()
		s, err := m.ask(m.ctx, open)
		return answer{s, err, at, once}
	}
}

// Update implements tea.Model.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	command := m.take(message)
	if !m.drawn && m.view.width > 0 { // else the terminal has not said how wide it is
		m.screen.draw(frame(m.snapshot, m.view))
		m.drawn = true
	}
	return m, command
}

// take changes what a message changes.
func (m *model) take(message tea.Msg) tea.Cmd {
	switch message := message.(type) {
	case tick:
		return m.refresh(false)
	case tea.WindowSizeMsg:
		m.view.width, m.view.height = message.Width, message.Height
		m.screen.fresh, m.drawn = true, false
	case answer:
		m.answered(message)
		if !message.once {
			return tea.Tick(m.every-min(m.every, time.Since(message.at)), func(time.Time) tea.Msg { return tick{} })
		}
	case tea.KeyMsg:
		m.drawn = false
		if message.Type != tea.KeyRunes {
			return m.key(message)
		}
		var all []tea.Cmd
		for _, r := range message.Runes { // several that were typed at once are one message
			all = append(all, m.key(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}}))
		}
		return tea.Batch(all...)
	}
	return nil
}

func (m *model) answered(a answer) {
	if a.err == nil && m.view.err == nil && a.snapshot.Version != 0 && a.snapshot.Version == m.snapshot.Version {
		return
	}
	m.drawn = false
	m.view.err = a.err
	if a.err == nil {
		m.snapshot = a.snapshot
		m.follow()
	}
}

// follow drops what is chosen of slices that are gone, and opens new ones if all are.
func (m *model) follow() {
	there := make(map[string]bool)
	for _, s := range m.snapshot.Slices {
		there[s.ID] = true
		if m.all {
			m.view.open[s.ID] = true
		}
	}
	maps.DeleteFunc(m.view.open, func(id string, _ bool) bool { return !there[id] })
	if !there[m.view.selected] {
		m.view.selected = ""
		m.move(0)
	}
}

// key does what a key is for; the command asks anew where it needs to.
func (m *model) key(k tea.KeyMsg) tea.Cmd {
	v := &m.view
	if k.Type == tea.KeyCtrlC {
		return tea.Quit
	}
	if v.typing {
		m.typed(k)
		return nil
	}
	switch k.String() {
	case "q":
		return tea.Quit
	case "esc":
		if v.filter == "" {
			return tea.Quit
		}
		v.filter = ""
		m.move(0)
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "enter", " ":
		if v.selected == "" {
			return nil
		}
		if v.open[v.selected] {
			delete(v.open, v.selected)
			return nil
		}
		v.open[v.selected] = true
		return m.refresh(true)
	case "a":
		m.all = !m.all
		clear(v.open)
		m.follow()
		return m.refresh(true)
	case "o":
		v.outside = !v.outside
	case "s":
		v.order = (v.order + 1) % orders
	case "/":
		v.typing = true
	}
	return nil
}

// typed is a key while the filter is typed.
func (m *model) typed(k tea.KeyMsg) {
	v := &m.view
	text := []rune(v.filter)
	switch k.Type {
	case tea.KeyEnter:
		v.typing = false
	case tea.KeyEsc:
		v.typing, v.filter = false, ""
	case tea.KeyBackspace:
		v.filter = string(text[:max(0, len(text)-1)])
	case tea.KeyRunes, tea.KeySpace:
		for _, r := range k.Runes {
			if unicode.IsPrint(r) && len(text) < maxFilter {
				text = append(text, r)
			}
		}
		v.filter = string(text)
	}
	m.move(0)
}

// move selects the slice that many rows below the one that is, or the first if none is.
func (m *model) move(by int) {
	var ids []string
	for _, r := range rows(m.snapshot, m.view) {
		if !slices.Contains(ids, r.slice.ID) {
			ids = append(ids, r.slice.ID)
		}
	}
	if len(ids) == 0 {
		m.view.selected = ""
		return
	}
	at := slices.Index(ids, m.view.selected)
	if at < 0 {
		at, by = 0, 0
	}
	m.view.selected = ids[max(0, min(at+by, len(ids)-1))]
}

// View implements tea.Model, which draws nothing: Update does.
func (m *model) View() string { return "" }
