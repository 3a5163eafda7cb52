//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

const (
	mib = uint64(1) << 20
	gib = uint64(1) << 30

	devices      = 2
	cards        = devices + 1 // what is on the last one only its turners know
	block        = 2 * mib     // what the card gives, and so what is charged, is a multiple of it
	contextBytes = 64 * mib

	memory = "512G" // of each card

	mostSlices        = 7
	mostWorkers       = 4 // of a slice
	mostPools         = 2
	operationsBefore  = 12
	operationsBetween = 3
	faultsTogether    = 4 // on the same slices
)

// world is one host: a daemon with file systems of its own, the simulated cards, the slices, and what the model says of
// them.
type world struct {
	*testing.T
	dir, bin string
	seed     uint64
	step     int
	client   *client.Client
	daemon   *daemon
	looker   *worker // in no slice: asks NVML
	slices   []*slice
	leased   *leased // nil: no lease service runs
	turners  []*turner
	turned   int // so many of them began
	pools    []*pool
	named    int    // slices so far
	doubt    string // why the enforcer may fail to do what it is asked for; "": it may not
	full     bool   // the run directory is
	away     string // why it is not there at all
	// The disk may keep what it refuses, since it does not let it be undone, and the enforcer is killed before it does.
	keeps   bool
	blind   bool // without driver truth it does not know how much there is
	trace   []string
	steps   int
	slowest time.Duration
	workers []*worker // all that ever were
	idle    int       // descriptors of a daemon without slices

	policy api.Action    // about memory past the ledger; whatever it is, nobody honest is to be hurt
	native bool          // the driver enforces, too
	misled bool          // the enforcer runs under programs/mislead.c
	turn   int64         // so often it was lied to
	ahead  time.Duration // by which its wall clock is

	asked struct{ begin, end time.Duration } // since boot: when the slices were listed last
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{T: t, seed: seed, policy: []api.Action{api.Log, api.Refuse, api.Kill}[seed%3]}
	w.daemon = &daemon{w: w}
	var err error
	if w.bin, err = filepath.Abs("../../bin"); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: a socket's address has 108 bytes.
	if w.dir, err = os.MkdirTemp("/tmp", "gsf-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.clear)
	for _, name := range []string{"run", "state", "fake", "bundles"} {
		w.must(os.Mkdir(filepath.Join(w.dir, name), 0o755))
	}
	// Small, so that they can be filled. The mount namespace is the test's own: run.sh makes it.
	w.must(unix.Mount("tmpfs", filepath.Join(w.dir, "run"), "tmpfs", 0, "size=4m,nr_inodes=2000,mode=755"))
	w.must(unix.Mount("tmpfs", filepath.Join(w.dir, "state"), "tmpfs", 0, "size=4m,nr_inodes=2000,mode=700"))
	w.configure(w.policy, false)
	w.client = client.New(w.socket())
	w.looker = w.newWorker(nil, exec.Command(programs["worker"]))
	if said := w.looker.hear(); !strings.HasPrefix(said, "ready ") {
		w.fail("the one who looks on: %q", said)
	}
	w.looker.ask("list 0") // makes the cards
	w.start()
	w.warm()
	w.eventually("the enforcer has nothing open of former slices", func() bool {
		now := w.descriptors()
		same := now == w.idle
		w.idle = now
		return same
	})
	for range turners {
		w.beginTurner()
	}
	return w
}

// configure is for the enforcer that is started next.
func (w *world) configure(policy api.Action, native bool) {
	w.Helper()
	enforcement := api.Intercept
	if native {
		enforcement = api.Native
	}
	w.policy, w.native = policy, native
	w.must(os.WriteFile(w.config(), fmt.Appendf(nil, `[enforcer]
socket = %q
run_dir = %q
state_dir = %q
library = %q
group = ""
truth_interval = "100ms"
settle_time = "500ms"
idle_interval = "1s"
context_overhead = "64M"
enforcement = %q

[expiry]
grace = "200ms"

[elastic]
min_resident = "50ms"
quantum = "200ms"

[policy]
bypass = %q
bypass_grace = "50ms"

[audit]
file = %q
max_size = "64KiB"
keep = 1
`, w.socket(), filepath.Join(w.dir, "run"), w.stateDir(), filepath.Join(w.bin, api.LibraryName), enforcement, policy,
		filepath.Join(w.stateDir(), "audit.jsonl")), 0o644))
}

// warm has the enforcer learn what a context takes: what the first one takes is charged when it is there.
func (w *world) warm() {
	r := w.random()
	s := w.registerContainer(r)
	for device := range devices {
		if got := s.init.ask("context %d", device); got != "ok" {
			w.fail("the first context: %q", got)
		}
		s.init.contexts[device] = true
	}
	w.eventually("the enforcer has learned what a context takes", func() bool {
		all, err := w.client.Devices(w.Context())
		return err == nil && len(all) == cards && all[0].Context == contextBytes
	})
	w.stopContainer(s)
	w.check()
}

// env is that of the simulated driver and of our programs.
func (w *world) env() []string {
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(w.bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(w.dir, "fake", "state"),
		fmt.Sprint("FAKECUDA_DEVICES=", cards), "FAKECUDA_MEMORY="+memory, fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes), "FAKECUDA_LIMITS=1", "GPUSLICE_CONFIG="+w.config())
}

func (w *world) logFile() string { return filepath.Join(w.dir, "log") }

// random numbers of this step: they depend on the seed and the step, and on nothing that was answered before.
func (w *world) random() *rand.Rand { return rand.New(rand.NewPCG(w.seed, uint64(w.step))) }

func shuffled[E any](r *rand.Rand, list []E) []E {
	list = slices.Clone(list)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// say adds a line to what happened.
func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%4d  %s", w.step, fmt.Sprintf(format, args...)))
	if testing.Verbose() {
		w.Log(w.trace[len(w.trace)-1])
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.fail("%v", err)
	}
}

// fail ends the round, with how to have it again and what led to it.
func (w *world) fail(format string, args ...any) {
	w.Helper()
	w.goesOn()
	text, _ := os.ReadFile(w.logFile())
	w.Fatalf("%s\n\nAgain: test/faults/run.sh -seed %d\n\nThe last steps:\n%s\n\nThe enforcer:\n%s", fmt.Sprintf(format, args...), w.seed,
		strings.Join(w.trace[max(0, len(w.trace)-25):], "\n"), text[max(0, len(text)-8000):])
}

// goesOn ends the round if the suite was told to end.
func (w *world) goesOn() {
	w.Helper()
	select {
	case <-interrupted:
		w.Fatal("interrupted")
	default:
	}
}

// eventually waits for what the kernel or the enforcer does by itself.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		w.goesOn()
		if time.Now().After(deadline) {
			w.fail("after %v it is still not so that %s", patience, what)
		}
	}
}

// dropAll ends all slices and pools.
func (w *world) dropAll() {
	w.Helper()
	for _, s := range slices.Clone(w.slices) {
		w.stop(s)
	}
	w.dropPools()
	w.check()
}

// end gives all back, and checks that nothing is left.
func (w *world) end() {
	w.say("the end")
	w.dropAll()
	w.turnersGoOn()
	for _, t := range slices.Clone(w.turners) {
		w.endTurner(t)
	}
	w.eventually("the enforcer has closed what it had open", func() bool { return w.descriptors() <= w.idle })
	w.restart(unix.SIGTERM)
	w.check()
	w.nothingLeft()
}

// clear removes what the round made, however it ended. What it cannot remove it says, and goes on.
func (w *world) clear() {
	w.leased.clear()
	if err := w.daemon.ends(unix.SIGKILL); err != nil {
		w.Error(err)
	}
	all := slices.Clone(w.slices)
	for _, t := range w.turners {
		all = append(all, t.slice)
	}
	for _, s := range all {
		if s.cgroup != "" {
			_ = os.WriteFile(filepath.Join(s.cgroup, "cgroup.freeze"), []byte("0"), 0)
			_ = os.WriteFile(filepath.Join(s.cgroup, "cgroup.kill"), []byte("1"), 0) // also who is not known yet
		}
	}
	for _, p := range w.workers {
		if !p.dead {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
	}
	for _, s := range all {
		if s.run != nil {
			_ = s.run.Process.Kill()
			if err := ending(s.run); errors.Is(err, errLate) {
				w.Error(err)
			}
		}
		if err := s.removeCgroup(); err != nil {
			w.Error(err)
		}
	}
	for _, name := range []string{"run", "state"} {
		_ = unix.Unmount(filepath.Join(w.dir, name), unix.MNT_DETACH)
	}
	_ = os.RemoveAll(w.dir)
}
