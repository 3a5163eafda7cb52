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

const maxFilter = 64

// Ask returns the current state, with the processes of the slices open.
type Ask func(ctx context.Context, open []string) (Snapshot, error)

type model struct {
	ctx    context.Context
	ask    Ask
	every  time.Duration
	screen *screen

	snapshot Snapshot
	view     view
	all      bool // show processes of all slices

	drawn bool // the screen is up to date
}

type (
	answer struct {
		snapshot Snapshot
		err      error
		at       time.Time // of the request
		once     bool      // schedules no further refresh
	}
	tick struct{}
)

// Run shows the snapshots of ask in a terminal, refreshed after each interval every, until the user quits or ctx ends.
func Run(ctx context.Context, in io.Reader, out io.Writer, ask Ask, every time.Duration) error {
	screen, err := takeScreen(in, out)
	if err != nil {
		return err
	}
	defer screen.leave()
	m := &model{ctx: ctx, ask: ask, every: every, screen: screen, view: view{open: make(map[string]bool)}}
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutRenderer(), tea.WithoutCatchPanics())
	defer screen.tellSizes(p)()
	defer context.AfterFunc(ctx, p.Quit)() // tea.WithContext would end it without waiting for the reader of keys
	_, err = p.Run()
	if ctx.Err() != nil {
		return nil // ignore its error: the terminal may be gone
	}
	return err
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.refresh(false) }

// refresh returns a command that calls ask concurrently.
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
	if !m.drawn && m.view.width > 0 { // else the size of the terminal is unknown
		m.screen.draw(frame(m.snapshot, m.view))
		m.drawn = true
	}
	return m, command
}

// take applies a message to the model.
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
		for _, r := range message.Runes { // keys typed at once arrive as one message
			all = append(all, m.key(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}}))
		}
		return tea.Batch(all...)
	}
	return nil
}

func (m *model) answered(a answer) {
	if a.err == nil && m.view.err == nil && a.snapshot.Version != 0 && a.snapshot.Version == m.snapshot.Version && maps.Equal(a.snapshot.Sensors, m.snapshot.Sensors) {
		return
	}
	m.drawn = false
	m.view.err = a.err
	if a.err == nil {
		m.snapshot = a.snapshot
		m.follow()
	}
}

// follow drops choices for slices that are gone, and opens new slices if all are open.
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

// key handles a key. It returns a command if a refresh is needed.
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

// move moves the selection by rows, or selects the first row if there is none.
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

// View implements tea.Model. It draws nothing, as Update does.
func (m *model) View() string { return "" }
