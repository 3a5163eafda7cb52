// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"
	"unicode"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/terminal"
)

func init() { terminal.Restore() }

// framesPerSecond is how often the screen is drawn at most, and how often the program wakes up for it: a fifth of a second after a key, and
// half of what ten would cost.
const framesPerSecond = 5

// maxFilter is how many characters a filter has at most.
const maxFilter = 64

// Ask returns how things stand, with the processes of those slices.
type Ask func(ctx context.Context, open []string) (Snapshot, error)

// model is bubbletea's.
type model struct {
	ctx   context.Context
	ask   Ask
	every time.Duration

	snapshot Snapshot
	view     view
	all      bool // processes of all slices are shown

	drawn string // the last frame; "" once something has changed
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
	m := &model{ctx: ctx, ask: ask, every: every, view: view{open: make(map[string]bool)}}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithAltScreen(), tea.WithFPS(framesPerSecond)).Run()
	if ctx.Err() != nil && (errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.refresh(false) }

// refresh asks aside.
func (m *model) refresh(once bool) tea.Cmd {
	open := slices.Sorted(maps.Keys(m.view.open))
	return func() tea.Msg {
		at := time.Now()
		s, err := m.ask(m.ctx, open)
		return answer{s, err, at, once}
	}
}

// Update implements tea.Model.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	if _, is := message.(tick); is {
		return m, m.refresh(false)
	}
	m.drawn = ""
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.view.width, m.view.height = message.Width, message.Height
	case answer:
		m.view.err = message.err
		if message.err == nil {
			m.snapshot = message.snapshot
			m.follow()
		}
		if !message.once {
			return m, tea.Tick(m.every-min(m.every, time.Since(message.at)), func(time.Time) tea.Msg { return tick{} })
		}
	case tea.KeyMsg:
		if message.Type != tea.KeyRunes {
			return m, m.key(message)
		}
		var all []tea.Cmd
		for _, r := range message.Runes { // several that were typed at once are one message
			all = append(all, m.key(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}}))
		}
		return m, tea.Batch(all...)
	}
	return m, nil
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

// View implements tea.Model. It is asked after each message, of which every other one only says that it is time to ask.
func (m *model) View() string {
	if m.view.width == 0 { // before the terminal has said how wide it is
		return ""
	}
	if m.drawn == "" {
		m.drawn = frame(m.snapshot, m.view)
	}
	return m.drawn
}
