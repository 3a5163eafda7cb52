// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/await"
)

var update = flag.Bool("update", false, "write the golden frames anew")

const card = "GPU-1b2c3d4e-0000-1111-2222-333344445555"

const gib = 1 << 30

func use(held, limit, refusals uint64) []api.DeviceUse {
	return []api.DeviceUse{{Device: card, Used: held, Overhead: gib / 2, Limit: limit, Refusals: refusals}}
}

func stand() Snapshot {
	usedBytes, free, x, truth, busy := uint64(30*gib), uint64(10*gib), uint64(9*gib), uint64(6*gib), uint32(37)
	return Snapshot{
		Devices: []api.Device{{
			UUID: card, Index: 0, Total: 80 * gib, Quotas: 60 * gib, Free: &free, Used: &usedBytes, OutsideUsed: 9 * gib, OutsideCount: 1,
			Outside: []api.OutsideProcess{{PID: 12, Command: "Xorg\x1b[31m", Bytes: &x}},
		}},
		Sensors: map[string]driver.Sensors{card: {Busy: driver.Reading{Value: 97, Known: true}, Power: driver.Reading{Value: 310499, Known: true}}},
		Slices: []api.Slice{
			{ID: "serve", State: api.Active, Devices: use(15*gib, 16*gib, 7), ProcessCount: 2},
			{ID: "train", State: api.Active, Tenant: "physics", Devices: use(5*gib, 40*gib, 0), ProcessCount: 1},
			{ID: "idle", State: api.Active},
			{ID: "a-session-with-a-name-that-is-long", State: api.Suspending, Devices: use(gib, 4*gib, 12345), ProcessCount: 321},
		},
		Details: map[string]api.Slice{"train": {ID: "train", Processes: []api.Process{
			{PID: 4711, Command: "python\x1b[2J", Bypass: api.BypassExcess, Devices: []api.ProcessUse{{Device: card, Used: 5 * gib, Overhead: gib / 2, Driver: &truth, Busy: &busy}}},
			{PID: 4712, Devices: []api.ProcessUse{{Device: card, Used: gib}}},
		}}},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestFrames(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	for name, v := range map[string]view{
		"plain":     {width: 140, height: 12, selected: "serve"},
		"processes": {width: 140, height: 14, selected: "train", open: map[string]bool{"train": true}, outside: true},
		"sorted":    {width: 140, height: 10, order: byQuota},
		"filtered":  {width: 140, height: 10, filter: "physics", typing: true},
		"narrow":    {width: 60, height: 7, selected: "train"},
		"80":        {width: 80, height: 14, selected: "train", open: map[string]bool{"train": true}},
		"120":       {width: 120, height: 14, selected: "serve", open: map[string]bool{"serve": true}},
		"failing":   {width: 100, height: 10, err: errors.New("no answer\x1b[2J")},
	} {
		got := frame(stand(), v)
		golden(t, name, got)
		lines := strings.Split(got, "\n")
		if len(lines) != v.height {
			t.Errorf("%s: %d lines of %d", name, len(lines), v.height)
		}
		for _, l := range lines {
			if ansi.StringWidth(l) > v.width || strings.ContainsRune(l, '\x1b') {
				t.Errorf("%s: %q", name, l)
			}
		}
	}
}

func TestQuotaAndStateAreOnTheScreenAtAnyWidth(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	for width := 54; width < 200; width++ {
		for l := range strings.SplitSeq(frame(stand(), view{width: width, height: 20}), "\n") {
			lacks := !strings.Contains(l, " 1GiB ") || !strings.Contains(l, " 4GiB ") || !strings.Contains(l, "  suspending")
			if ansi.StringWidth(l) > width || strings.Contains(l, "a-s") && lacks {
				t.Errorf("in %d columns: %s", width, l)
			}
		}
	}
}

func TestABarHasUsedThenOverheadOfTheQuota(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	bars := brushes{brushOf(used), brushOf(over), brushOf(full)}
	for want, c := range map[string]struct{ used, overhead, quota uint64 }{
		"[##++    ]": {2 * gib, 2 * gib, 8 * gib}, "[######++]": {6 * gib, 2 * gib, 8 * gib}, "[########]": {9 * gib, 2 * gib, 8 * gib}, "[        ]": {0, 0, 0},
	} {
		if got := bars.bar(c.used, c.overhead, c.quota, 8); got != want {
			t.Errorf("%+v: got %s, want %s", c, got, want)
		}
	}
}

func TestColoursAreOnByDefault(t *testing.T) {
	defer lipgloss.SetColorProfile(termenv.Ascii)
	lipgloss.SetColorProfile(termenv.ANSI)
	if got := frame(stand(), view{width: 140, height: 12}); !strings.Contains(got, "\x1b[32m#") {
		t.Errorf("no green in %q", got)
	}
}

func TestTheSelectedSliceIsOnTheScreen(t *testing.T) {
	lipgloss.SetColorProfile(termenv.Ascii)
	var s Snapshot
	for i := range 100 {
		s.Slices = append(s.Slices, api.Slice{ID: fmt.Sprintf("s%03d", i), State: api.Active, Devices: use(uint64(i)*gib, 200*gib, 0)})
	}
	for _, id := range []string{"s000", "s050", "s099"} {
		got := frame(s, view{width: 120, height: 20, order: byName, selected: id})
		if !strings.Contains(got, "> "+id) || strings.Count(got, "\n") != 19 {
			t.Errorf("%s is not in\n%s", id, got)
		}
	}
}

type received struct {
	mu   sync.Mutex
	sent bytes.Buffer
}

func (s *received) read(f *os.File) {
	buffer := make([]byte, 4096)
	for {
		n, err := f.Read(buffer)
		s.mu.Lock()
		s.sent.Write(buffer[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// waitFor waits for text, and returns the output before it.
func (s *received) waitFor(t *testing.T, text string) (before string) {
	t.Helper()
	await.That(t, text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		got, rest, found := strings.Cut(s.sent.String(), text)
		if found {
			before = got
			s.sent.Reset()
			s.sent.WriteString(rest)
		}
		return found
	})
	return before
}

// all returns the output that no call has consumed.
func (s *received) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent.String()
}

// shows waits until the output since the last take contains text.
func (s *received) shows(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		got := ansi.Strip(s.sent.String())
		has := strings.Contains(got, text)
		if has {
			s.sent.Reset()
		}
		s.mu.Unlock()
		if has {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the terminal does not show %q but\n%s", text, got)
		}
	}
}

func TestKeysInATerminal(t *testing.T) {
	var asked, failing atomic.Int32
	ask := func(_ context.Context, open []string) (Snapshot, error) {
		asked.Add(1)
		if failing.Load() > 0 {
			return Snapshot{}, errors.New("gone for a moment")
		}
		s := stand()
		if len(open) == 0 {
			s.Details = nil
		}
		return s, nil
	}
	terminal, _, s, done := onTerminal(t, t.Context(), ask, 20*time.Millisecond)
	press := func(keys string) {
		if _, err := terminal.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	s.shows(t, "> serve")
	press("\x1b[B") // down
	s.shows(t, "> train")
	press("\r")
	s.shows(t, "process 4711")
	press("o")
	s.shows(t, `process 12 Xorg\x1b[31m`)
	press("s")
	s.shows(t, "sorted by quota")
	press("/phy")
	s.shows(t, "/phy_")
	press("\r")
	s.shows(t, "q quit")
	failing.Store(1)
	s.shows(t, "this is its last answer: gone for a moment")
	failing.Store(0)
	n := asked.Load()
	for end := time.Now().Add(time.Minute); asked.Load() < n+3 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if asked.Load() < n+3 {
		t.Error("it is not refreshed")
	}
	press("q")
	ends(t, done)
}

// With 100 slices, a refresh per second takes less than 1 % of a core. The test allows ten times that.
func TestARefreshCostsLittle(t *testing.T) {
	lipgloss.SetColorProfile(termenv.ANSI)
	defer lipgloss.SetColorProfile(termenv.Ascii)
	var s Snapshot
	s.Devices = stand().Devices
	for i := range 100 {
		s.Slices = append(s.Slices, api.Slice{ID: fmt.Sprintf("%064x", i), State: api.Active, Devices: use(uint64(i)*gib, 200*gib, 0)})
	}
	m := &model{ctx: context.Background(), view: view{width: 140, height: 50, open: make(map[string]bool)}, every: time.Second, screen: &screen{out: io.Discard}}
	const times = 50
	before := cpu(t)
	for range times {
		m.Update(answer{snapshot: s, at: time.Now()})
	}
	each := (cpu(t) - before) / times
	t.Logf("a refresh of 100 slices takes %v", each)
	if each > 100*time.Millisecond {
		t.Errorf("a refresh takes %v of processor time", each)
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
