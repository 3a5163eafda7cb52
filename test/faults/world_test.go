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
	"github.com/gpuslice/gpuslice/test/expect"
)

const (
	mib = uint64(1) << 20
	gib = uint64(1) << 30

	devices      = 2
	cards        = devices + 1 // only turners use the last card
	block        = 2 * mib     // the card's allocation unit, so charges are multiples of it
	contextBytes = 64 * mib

	memory = "512G" // of each card

	mostSlices        = 7
	mostWorkers       = 4 // of a slice
	mostPools         = 2
	operationsBefore  = 12
	operationsBetween = 3
	faultsTogether    = 4 // faults with the same slices
)

// world is one host: a daemon with its own file systems, the simulated cards, the slices, and their model.
type world struct {
	*testing.T
	dir, bin   string
	seed       uint64
	step       int
	client     *client.Client
	daemon     *daemon
	observer   *worker // outside all slices; queries NVML
	slices     []*slice
	leased     *leased // nil: no lease service runs
	turners    []*turner
	turned     int // number started
	pools      []*pool
	named      int    // slices so far
	mayFail    string // why the enforcer may fail a request; "" if it may not
	full       bool   // the run directory is full
	downReason string // why the enforcer does not run
	// The disk may keep a change that it rejects: it prevents the undo, and the enforcer is killed before retrying.
	diskKeepsChanges bool
	noTruth          bool // the enforcer has no driver truth and does not know the card's size
	trace            []string
	steps            int
	slowest          time.Duration
	workers          []*worker // all workers ever started
	idle             int       // descriptors of a daemon without slices

	policy   api.Action    // on memory past the ledger; must never hurt an honest process
	native   bool          // the driver enforces, too
	misled   bool          // the enforcer runs under programs/mislead.c
	lieCount int64         // number of lies so far
	ahead    time.Duration // offset of its wall clock

	asked struct{ begin, end time.Duration } // since boot: around the last listing of slices
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{T: t, seed: seed, policy: []api.Action{api.Log, api.Refuse, api.Kill}[seed%3]}
	w.daemon = &daemon{w: w}
	var err error
	if w.bin, err = filepath.Abs("../../bin"); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: a socket address is limited to 108 bytes.
	if w.dir, err = os.MkdirTemp("/tmp", "gsf-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.clear)
	for _, name := range []string{"run", "state", "fake", "bundles"} {
		w.must(os.Mkdir(filepath.Join(w.dir, name), 0o755))
	}
	// Small enough to fill. run.sh gives the test its own mount namespace.
	w.must(unix.Mount("tmpfs", filepath.Join(w.dir, "run"), "tmpfs", 0, "size=4m,nr_inodes=2000,mode=755"))
	w.must(unix.Mount("tmpfs", filepath.Join(w.dir, "state"), "tmpfs", 0, "size=4m,nr_inodes=2000,mode=700"))
	w.configure(w.policy, false)
	w.client = client.New(w.socket())
	w.observer = w.newWorker(nil, exec.Command(programs["worker"]))
	if said := w.observer.readLine(); !strings.HasPrefix(said, "ready ") {
		w.fail("the observer: %q", said)
	}
	w.observer.ask("list 0") // creates the cards
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

// warm has the enforcer learn a context's size: only the first context is charged after its creation.
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

func (w *world) env() []string {
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(w.bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(w.dir, "fake", "state"),
		fmt.Sprint("FAKECUDA_DEVICES=", cards), "FAKECUDA_MEMORY="+memory, fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes), "FAKECUDA_LIMITS=1", "GPUSLICE_CONFIG="+w.config())
}

func (w *world) logFile() string { return filepath.Join(w.dir, "log") }

// random returns a generator that depends only on the seed and the step.
func (w *world) random() *rand.Rand { return rand.New(rand.NewPCG(w.seed, uint64(w.step))) }

func shuffled[E any](r *rand.Rand, list []E) []E {
	list = slices.Clone(list)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

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

// fail ends the round, with its trace and how to repeat it.
func (w *world) fail(format string, args ...any) {
	w.Helper()
	w.goesOn()
	text, _ := os.ReadFile(w.logFile())
	w.Fatalf("%s\n\nAgain: test/faults/run.sh -seed %d\n\nThe last steps:\n%s\n\nThe enforcer:\n%s", fmt.Sprintf(format, args...), w.seed,
		strings.Join(w.trace[max(0, len(w.trace)-25):], "\n"), text[max(0, len(text)-8000):])
}

// goesOn ends the round if the suite was interrupted.
func (w *world) goesOn() {
	w.Helper()
	select {
	case <-interrupted:
		w.Fatal("interrupted")
	default:
	}
}

func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		w.goesOn()
		if time.Now().After(deadline) {
			w.fail("after %v it is still not so that %s", patience, what)
		}
	}
}

func (w *world) dropAll() {
	w.Helper()
	for _, s := range slices.Clone(w.slices) {
		w.stop(s)
	}
	w.dropPools()
	w.check()
}

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

// clear removes what the round created, even after a failure. It logs what it cannot remove.
func (w *world) clear() {
	w.leased.clear()
	expect.NoError(w, w.daemon.ends(unix.SIGKILL))
	all := slices.Clone(w.slices)
	for _, t := range w.turners {
		all = append(all, t.slice)
	}
	for _, s := range all {
		if s.cgroup != "" {
			_ = os.WriteFile(filepath.Join(s.cgroup, "cgroup.freeze"), []byte("0"), 0)
			_ = os.WriteFile(filepath.Join(s.cgroup, "cgroup.kill"), []byte("1"), 0) // including processes not yet known
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
		expect.NoError(w, s.removeCgroup())
	}
	for _, name := range []string{"run", "state"} {
		_ = unix.Unmount(filepath.Join(w.dir, name), unix.MNT_DETACH)
	}
	_ = os.RemoveAll(w.dir)
}
