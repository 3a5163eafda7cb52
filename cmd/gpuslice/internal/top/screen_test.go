// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
	"github.com/creack/pty"
	"github.com/muesli/termenv"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/await"
)

func TestOnlyLinesThatChangedAreDrawn(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, fresh: true}
	at := func(row int) string { return ansi.CursorPosition(1, row) + ansi.EraseLineRight }
	for _, step := range []struct{ frame, want string }{
		{"a\nb\nc", ansi.EraseEntireScreen + at(1) + "a" + at(2) + "b" + at(3) + "c"},
		{"a\nb\nc", ""},
		{"a\nB\nc", at(2) + "B"},
		{"a", ansi.CursorPosition(1, 2) + ansi.EraseScreenBelow},
		{"a\nb", at(2) + "b"},
	} {
		out.Reset()
		s.draw(step.frame)
		if out.String() != step.want {
			t.Errorf("%q: drawn is %q, want %q", step.frame, out.String(), step.want)
		}
	}
	out.Reset()
	s.fresh = true
	s.draw("a\nb")
	if want := ansi.EraseEntireScreen + at(1) + "a" + at(2) + "b"; out.String() != want {
		t.Errorf("on a screen of another size drawn is %q, want %q", out.String(), want)
	}
}

// onTerminal runs top on a terminal of its own.
func onTerminal(t *testing.T, ctx context.Context, ask Ask, every time.Duration) (terminal, tty *os.File, s *received, done chan error) {
	t.Helper()
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	t.Cleanup(func() {
		terminal.Close()
		tty.Close()
	})
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 20, Cols: 140}); err != nil {
		t.Fatal(err)
	}
	done, s = make(chan error, 1), new(received)
	go func() { done <- Run(ctx, tty, tty, ask, every) }()
	go s.read(terminal)
	return terminal, tty, s, done
}

func ends(t *testing.T, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

func TestNothingIsDrawnWhileNothingChanges(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	var asked, version atomic.Int64
	version.Store(1)
	ask := func(context.Context, []string) (Snapshot, error) {
		asked.Add(1)
		s := stand()
		if s.Version = uint64(version.Load()); s.Version > 1 {
			s.Slices = s.Slices[:1]
		}
		return s, nil
	}
	terminal, tty, s, done := onTerminal(t, t.Context(), ask, 5*time.Millisecond)
	drawn := func() string { // by the next refreshes: all that the terminal has before a mark
		t.Helper()
		n := asked.Load()
		await.That(t, "it is refreshed", func() bool { return asked.Load() >= n+20 })
		mark := fmt.Sprintf("<%d>", n)
		if _, err := tty.WriteString(mark); err != nil {
			t.Fatal(err)
		}
		return s.waitFor(t, mark)
	}
	s.shows(t, "q quit")
	drawn() // the rest of the previous frame
	if got := drawn(); got != "" {
		t.Errorf("drawn is %q though nothing has changed", got)
	}
	version.Store(2)
	s.shows(t, "1 slice ")
	drawn()
	if _, err := terminal.WriteString("k"); err != nil { // there is no row above
		t.Fatal(err)
	}
	if got := drawn(); got != "" {
		t.Errorf("drawn is %q though the key changed nothing", got)
	}
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 5, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	// The kernel signals processes of that terminal only; this process has another.
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "gpuslice  1 slice ")
	if _, err := terminal.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	ends(t, done)
}

func TestTerminalIsRestored(t *testing.T) {
	ask := func(context.Context, []string) (Snapshot, error) { return stand(), nil }
	for how, end := range map[string]func(terminal *os.File, cancel func()) error{
		"q": func(terminal *os.File, _ func()) error {
			_, err := terminal.WriteString("q")
			return err
		},
		"ctrl+c": func(terminal *os.File, _ func()) error {
			_, err := terminal.WriteString("\x03")
			return err
		},
		"its context": func(_ *os.File, cancel func()) error {
			cancel()
			return nil
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		terminal, tty, s, done := onTerminal(t, ctx, ask, time.Hour)
		s.shows(t, "q quit")
		raw, err := term.GetState(tty.Fd())
		if err != nil || raw.Lflag&unix.ICANON != 0 || raw.Lflag&unix.ECHO != 0 {
			t.Errorf("%s: keys come by lines, or are shown: %v, %v", how, raw, err)
		}
		if err := end(terminal, cancel); err != nil {
			t.Fatal(err)
		}
		ends(t, done)
		state, err := term.GetState(tty.Fd())
		if err != nil || state.Lflag&unix.ICANON == 0 || state.Lflag&unix.ECHO == 0 {
			t.Errorf("%s: the terminal is left as it was for top: %v, %v", how, state, err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			got := s.all()
			if strings.HasSuffix(got, ansi.ResetBracketedPasteMode+ansi.ShowCursor+ansi.ResetAltScreenSaveCursorMode) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the last that it wrote is %q", how, got[max(0, len(got)-100):])
			}
		}
		cancel()
	}
}

func TestFailureIsShownWhileItLasts(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	var failing, warm atomic.Bool
	ask := func(context.Context, []string) (Snapshot, error) {
		if failing.Load() {
			return Snapshot{}, errors.New("gone for a moment")
		}
		s := stand()
		s.Version = 7 // same before and after
		if warm.Load() {
			s.Sensors[card] = driver.Sensors{Temperature: driver.Reading{Value: 64, Known: true}}
		}
		return s, nil
	}
	terminal, _, s, done := onTerminal(t, t.Context(), ask, 5*time.Millisecond)
	s.shows(t, "q quit")
	failing.Store(true)
	s.shows(t, "gone for a moment")
	failing.Store(false)
	s.shows(t, "q quit")
	warm.Store(true)
	s.shows(t, "64 °C")
	if _, err := terminal.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	ends(t, done)
}
