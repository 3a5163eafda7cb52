// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
)

// screen is the terminal in use. It draws only changed lines, and only on changes; bubbletea checks for changes periodically
// instead.
type screen struct {
	out   io.Writer
	lines []string // as shown
	fresh bool     // nothing is shown yet

	leave func() // restores the terminal, once
}

// takeScreen switches the terminal to raw mode and clears the screen.
func takeScreen(in io.Reader, out io.Writer) (*screen, error) {
	back := func() {}
	if f, ok := in.(*os.File); ok && term.IsTerminal(f.Fd()) {
		was, err := term.MakeRaw(f.Fd())
		if err != nil {
			return nil, fmt.Errorf("set the terminal to raw mode: %w", err)
		}
		back = func() { _ = term.Restore(f.Fd(), was) }
	}
	_, _ = io.WriteString(out, ansi.SetAltScreenSaveCursorMode+ansi.HideCursor+ansi.SetBracketedPasteMode)
	return &screen{out: out, fresh: true, leave: sync.OnceFunc(func() {
		_, _ = io.WriteString(out, ansi.ResetBracketedPasteMode+ansi.ShowCursor+ansi.ResetAltScreenSaveCursorMode)
		back()
	})}, nil
}

// leaveAtPanic restores the terminal if the goroutine panics.
func (s *screen) leaveAtPanic() {
	if p := recover(); p != nil {
		s.leave()
		panic(p)
	}
}

// draw shows a frame. Its lines must not be wider than the screen.
func (s *screen) draw(frame string) {
	var b strings.Builder
	if s.fresh {
		b.WriteString(ansi.EraseEntireScreen)
		s.lines, s.fresh = nil, false
	}
	lines := strings.Split(frame, "\n")
	for i, line := range lines {
		if i >= len(s.lines) || s.lines[i] != line {
			b.WriteString(ansi.CursorPosition(1, i+1) + ansi.EraseLineRight + line) // erase before writing: later it would erase the last column
		}
	}
	if len(lines) < len(s.lines) {
		b.WriteString(ansi.CursorPosition(1, len(lines)+1) + ansi.EraseScreenBelow)
	}
	s.lines = lines
	if b.Len() > 0 {
		_, _ = io.WriteString(s.out, b.String())
	}
}

// tellSizes sends the size of the screen to p, now and after each change, until stop is called.
func (s *screen) tellSizes(p *tea.Program) (stop func()) {
	f, ok := s.out.(*os.File)
	if !ok {
		return func() {}
	}
	changed := make(chan os.Signal, 1)
	changed <- syscall.SIGWINCH
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			if width, height, err := term.GetSize(f.Fd()); err == nil {
				p.Send(tea.WindowSizeMsg{Width: width, Height: height})
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		close(changed)
	}
}
